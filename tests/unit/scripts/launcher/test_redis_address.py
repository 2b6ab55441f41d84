"""A Redis of one's own that is not there."""

import socket

import pytest

from scripts.embedded.redis_server import check_redis
from scripts.launcher.errors import LaunchError


def closed_port() -> socket.socket:
    """Bound but not listening: nobody answers there, nobody else gets it."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


async def test_a_redis_that_listens_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        await check_redis(f"redis://user:secret@127.0.0.1:{server.getsockname()[1]}/0")


async def test_a_redis_that_is_not_there_is_named_without_its_password() -> None:
    with closed_port() as held:
        number = held.getsockname()[1]
        with pytest.raises(LaunchError, match=f"no Redis answers at 127.0.0.1:{number}") as caught:
            await check_redis(f"redis://user:secret@127.0.0.1:{number}/0")
    assert "--redis" in caught.value.hint


@pytest.mark.parametrize("url", ["foo", "http://127.0.0.1:1", "redis://127.0.0.1:port"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(LaunchError, match=r"no address|wrong"):
        await check_redis(url)


async def test_a_missing_socket_is_named() -> None:
    with pytest.raises(LaunchError, match=r"no Redis answers at /no/such\.sock"):
        await check_redis("unix:///no/such.sock")
