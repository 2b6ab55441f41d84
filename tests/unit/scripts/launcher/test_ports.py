"""Ports that are held for children."""

import socket

import pytest

from scripts.launcher.errors import LaunchError
from scripts.launcher.ports import HeldPort

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((HOST, port))
    server.listen()
    return server


def test_a_server_can_listen_on_a_held_port_again_and_again() -> None:
    held = HeldPort(HOST)
    for _ in range(3):
        with listen(held.number), socket.create_connection((HOST, held.number), timeout=5):
            pass
    held.release()


def test_nobody_else_is_given_a_held_port() -> None:
    held = [HeldPort(HOST) for _ in range(50)]
    assert len({port.number for port in held}) == len(held)
    for port in held:
        port.release()


def test_who_connects_to_a_port_that_listens_waits_for_a_server() -> None:
    held = HeldPort(HOST, is_listening=True)
    with socket.create_connection((HOST, held.number), timeout=5) as client:
        client.sendall(b"hello")
        with socket.socket(fileno=socket.dup(held.fd)) as server:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(5) == b"hello"
    with pytest.raises(LaunchError, match=f"port {held.number} on {HOST} is busy"):
        HeldPort(HOST, held.number, is_listening=True)
    held.release()


def test_a_busy_port_is_refused_with_what_to_do() -> None:
    with listen(0) as server:
        number = server.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {number} on {HOST} is busy") as caught:
            HeldPort(HOST, number)
    assert "--port" in caught.value.hint


@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.1"])
def test_a_host_that_is_not_here_is_refused_with_what_to_do(host: str) -> None:
    with pytest.raises(LaunchError, match=host) as caught:
        HeldPort(host)
    assert "--host" in caught.value.hint
