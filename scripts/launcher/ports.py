"""Ports for children, held from before they start until the cluster ends.

The holder is bound but does not listen. Servers that set SO_REUSEADDR (NATS, Valkey) can bind
beside it, again after a restart too, while nobody else is given the port. For a gateway the holder
listens too: its processes are given the socket, and what waits in its queue outlives each of them.
"""

import errno
import socket

from scripts.launcher.errors import LaunchError

BACKLOG = 1_024


class HeldPort:
    """One port on one host; `number` 0 takes a free one."""

    def __init__(
        self, host: str, number: int = 0, *, option: str = "--port", is_listening: bool = False
    ) -> None:
        """`option` is the one that names the port, for what the user is told."""
        try:
            found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)
        except OSError as error:
            raise LaunchError(
                f"{host} is no address of this machine: {error.strerror}",
                hint="--host 127.0.0.1 serves this machine, --host 0.0.0.0 the network too",
            ) from None
        family, _, _, _, address = found[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(address)
            if is_listening:
                self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"port {number} on {host} is busy",
                    hint=f"stop what listens there (ss -ltnp 'sport = :{number}' names it), or "
                    f"choose another with {option}; {option} 0 takes a free one",
                ) from None
            raise LaunchError(
                f"cannot use port {number} on {host}: {error.strerror}",
                hint="--host must be an address of this machine; ports below 1024 need root",
            ) from None
        self.number: int = self._socket.getsockname()[1]

    @property
    def fd(self) -> int:
        """To be passed on to a child."""
        return self._socket.fileno()

    def release(self) -> None:
        self._socket.close()


def reachable(host: str) -> str:
    """How this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
