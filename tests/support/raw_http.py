"""Bytes to an HTTP server and all that comes back, for questions no client would send."""

import socket
from urllib.parse import urlsplit


def ask_raw(url: str, question: bytes) -> bytes:
    """What is answered until the server closes; empty when it only closes."""
    place = urlsplit(url)
    assert place.hostname is not None
    answer = b""
    with socket.create_connection((place.hostname, place.port or 80), timeout=30) as connection:
        try:
            connection.sendall(question)
            while part := connection.recv(65_536):
                answer += part
        except ConnectionError:
            return answer
    return answer
