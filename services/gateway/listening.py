"""The socket that clients connect to: its own, or one that who started the process holds."""

import socket

from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError

BACKLOG = 1_024


def listen(host: str, port: int) -> socket.socket:
    """A socket of this process: what waits in its queue is reset when the process closes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ServiceError(
            ErrorCode.BAD_REQUEST,
            f"MOONPOOL_HTTP_PORT={port}: cannot listen on {host}: {error.strerror or error}; "
            "choose another port or end the process that has it",
        ) from error
    return listening


def inherit(fd: int) -> socket.socket:
    """A listening socket that was given: its queue outlives this process."""
    try:
        listening = socket.socket(fileno=fd)
    except OSError as error:
        raise _no_socket(fd, error.strerror or str(error)) from error
    accepts = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listening.type != socket.SOCK_STREAM or not accepts:
        listening.detach()
        raise _no_socket(fd, "it does not listen")
    listening.set_inheritable(False)
    listening.setblocking(False)
    return listening


def _no_socket(fd: int, why: str) -> ServiceError:
    return ServiceError(
        ErrorCode.BAD_REQUEST,
        f"MOONPOOL_HTTP_FD={fd}: {why}; it must be a listening socket that was passed on "
        "(3 under a socket unit of systemd), or be left out",
    )
