"""The embedded servers are real ones, and behave as the services need."""

import asyncio
from pathlib import Path

import nats
import pytest
import redis.asyncio as redis

from tests.support.servers import TestServer, nats_server, redis_server

pytestmark = pytest.mark.integration


def files_of(folder: Path, *patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in folder.rglob(pattern)]


async def test_nats_takes_messages_of_eight_megabytes(own_nats: TestServer) -> None:
    client = await nats.connect(own_nats.url)
    try:
        assert client.max_payload == 8 << 20
        subscription = await client.subscribe("big")
        await client.publish("big", bytes(8 << 20))
        message = await subscription.next_msg(timeout=10)
        assert len(message.data) == 8 << 20
    finally:
        await client.close()


async def test_clients_come_back_to_a_restarted_nats(own_nats: TestServer) -> None:
    is_back = asyncio.Event()

    async def on_reconnect() -> None:
        is_back.set()

    async def ignore(_error: Exception) -> None:
        return

    client = await nats.connect(
        own_nats.url,
        reconnect_time_wait=0.05,  # type: ignore[arg-type]
        max_reconnect_attempts=-1,
        reconnected_cb=on_reconnect,
        error_cb=ignore,
    )
    try:
        own_nats.stop()
        own_nats.start()
        await asyncio.wait_for(is_back.wait(), 10)
        await client.flush(timeout=5)
    finally:
        await client.close()


async def test_redis_runs_scripts_and_writes_nothing_to_disk(
    own_redis: TestServer, tmp_path: Path
) -> None:
    client = redis.from_url(own_redis.url)
    try:
        assert await client.eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, "k", "v") == b"OK"
        assert await client.get("k") == b"v"
    finally:
        await client.aclose()
    own_redis.stop()
    assert files_of(tmp_path, "*.rdb", "*.aof") == []


def test_many_servers_run_side_by_side(tmp_path: Path) -> None:
    with (
        nats_server(tmp_path / "a") as a,
        nats_server(tmp_path / "b") as b,
        redis_server(tmp_path / "c") as c,
        redis_server(tmp_path / "d") as d,
    ):
        assert len({server.url for server in (a, b, c, d)}) == 4
