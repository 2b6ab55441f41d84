"""Where a node listens for its peers: the address it gives out, and a bound socket."""

import asyncio
import errno
import re
import socket
from typing import Any
from urllib.parse import urlsplit

BACKLOG = 128
RESOLVE_S = 2.0
Addresses = list[tuple[socket.AddressFamily, tuple[Any, ...]]]
NATS_PORT = 4222


class ListenError(Exception):
    """No place to listen; the sentence names the setting."""


def parse_ports(text: str) -> range:
    """`` (any free one), `7400`, or `7400-7499`."""
    if not text:
        return range(1)
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text.strip())
    if found is None:
        raise ValueError(f"a port or a range of ports as in 7400-7499, not {text!r}")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last <= 65_535:
        raise ValueError(f"ports are 1 to 65535 and the first is not above the last, not {text!r}")
    return range(first, last + 1)


async def default_host(nats_url: str) -> str:
    """The address of this machine on the way to NATS: there the other nodes come from, too."""
    for family, address in await _addresses(nats_url):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)  # sends nothing
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return "127.0.0.1"


async def _addresses(nats_url: str) -> Addresses:
    """Of all servers that can be resolved."""
    found: Addresses = []
    for one in nats_url.split(","):
        parts = urlsplit(one.strip())
        try:
            found += await _resolved(parts.hostname or "127.0.0.1", parts.port or NATS_PORT)
        except ListenError:
            continue
    return found


async def bind_listener(host: str, ports: range) -> socket.socket:
    """At `host`; on all addresses where `host` is not this machine's own (a container's name)."""
    families = await _resolved(host, 0)
    refused: OSError | None = None
    for family, address in families:
        for port in ports:
            try:
                return _bound(family, str(address[0]), port)
            except OSError as error:
                refused = error
                if error.errno != errno.EADDRINUSE:
                    break
    shown = str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"
    raise ListenError(
        f"MOONPOOL_TCP_HOST={host}: cannot listen at port {shown}: "
        f"{refused.strerror if refused else 'no address'}; free a port or set MOONPOOL_TCP_PORTS"
    )


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    for each in (address, "::" if family == socket.AF_INET6 else "0.0.0.0"):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((each, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            continue
        return listener
    raise OSError(errno.EADDRNOTAVAIL, "no such address here")


async def _resolved(host: str, port: int) -> Addresses:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        raise ListenError(
            f"MOONPOOL_TCP_HOST={host}: this name has no address ({error or 'time-out'})"
        ) from None
    return [(family, address) for family, _, _, _, address in found]
