"""Opens the transports that are asked for by name, and tells what peers must know of them.

A transport registers itself here by name; what cannot be opened on this machine is left out.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.transport.base import RdmaAddress, TcpAddress, Transport
from shared.transport.copying import Copier
from shared.transport.listening import ListenError, default_host, parse_ports
from shared.transport.local import LocalTransport
from shared.transport.rdma import RdmaTransport
from shared.transport.rdma_options import RdmaOptions
from shared.transport.router import Router
from shared.transport.segment import Segment
from shared.transport.tcp import TcpTransport
from shared.transport.ucx_context import UcxError
from shared.transport.ucx_library import UcxUnavailable
from shared.transport.ucx_report import check_device

log = logging.getLogger("moonpool.transport")
DEFAULT_ORDER = "local,rdma,tcp"


class Unavailable(Exception):
    """This machine has not what a transport needs; the sentence says what."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """What the settings say."""

    names: Sequence[str]
    copy_threads: int = 2
    cache_dir: Path = Path.home() / ".cache" / "moonpool"
    nats_url: str = ""
    tcp_host: str = ""
    """Empty: the address of this machine on the way to NATS."""
    tcp_ports: str = ""
    tcp_streams: int | None = None
    rdma: RdmaOptions = field(default_factory=RdmaOptions)


@dataclass(frozen=True, slots=True)
class Place:
    """Whose transports are opened."""

    segment: Segment
    node: str
    incarnation: str
    copier: Copier
    options: TransportOptions


@dataclass(slots=True)
class Opened:
    """One transport, and what a peer must know to reach this node over it."""

    transport: Transport
    tcp: TcpAddress | None = None
    rdma: Callable[[], RdmaAddress] | None = None
    """Asked for each description: it may change."""


@dataclass(slots=True)
class Transports:
    """All that were opened, in order of preference."""

    router: Router
    opened: list[Opened] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Why others are not there."""

    @property
    def has_local(self) -> bool:
        return "local" in self.router.names

    @property
    def tcp(self) -> TcpAddress | None:
        return next((each.tcp for each in self.opened if each.tcp is not None), None)

    @property
    def rdma(self) -> RdmaAddress | None:
        return next((each.rdma() for each in self.opened if each.rdma is not None), None)


Opener = Callable[[Place], Awaitable[Opened]]


def parse_names(text: str) -> list[str]:
    """`local,tcp`: known names in order, each once; ValueError that names the bad one."""
    names = [name for name in re.split(r"[,\s]+", text.strip()) if name]
    for name in names:
        if name not in OPENERS:
            raise ValueError(f"{name!r} is no transport; there are {', '.join(OPENERS)}")
    if not names:
        raise ValueError(f"name one transport at least, of {', '.join(OPENERS)}")
    return list(dict.fromkeys(names))


async def open_transports(place: Place, openers: Mapping[str, Opener] | None = None) -> Transports:
    """Unavailable when none of those that are wanted can be opened here."""
    known = OPENERS if openers is None else openers
    opened: list[Opened] = []
    missing: dict[str, str] = {}
    for name in place.options.names:
        try:
            opened.append(await known[name](place))
        except Unavailable as error:
            missing[name] = str(error)
            log.info("no %s here: %s", name, error)
        except ListenError as error:
            missing[name] = str(error)
            log.warning("no %s here: %s", name, error)
    if not opened:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise Unavailable(f"MOONPOOL_TRANSPORTS: none can be opened here ({reasons})")
    return Transports(Router([each.transport for each in opened]), opened, missing)


async def _open_local(place: Place) -> Opened:
    threads = place.options.copy_threads
    return Opened(LocalTransport(place.segment, num_threads=threads, copier=place.copier))


async def _open_tcp(place: Place) -> Opened:
    options = place.options
    host = options.tcp_host or await default_host(options.nats_url)
    transport = TcpTransport(
        place.segment, place.node, place.incarnation, num_streams=options.tcp_streams
    )
    address = await transport.listen(host, parse_ports(options.tcp_ports))
    log.info("peers open streams at %s port %d", address.host, address.port)
    return Opened(transport, tcp=address)


async def _open_rdma(place: Place) -> Opened:
    options = place.options.rdma
    try:
        check_device(options)
        transport = await RdmaTransport.open(place.segment, options)
    except (UcxUnavailable, UcxError) as error:
        raise Unavailable(str(error)) from None
    return Opened(transport, rdma=transport.describe)


OPENERS: dict[str, Opener] = {"local": _open_local, "rdma": _open_rdma, "tcp": _open_tcp}
