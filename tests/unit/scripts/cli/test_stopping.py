"""What ends a command: signals, its work, its work's error."""

import asyncio
import os
import signal
from typing import cast

import pytest

from scripts.cli import stopping
from scripts.launcher.cluster import LocalCluster


class Killable:
    """Counts what `watch_signals` asks of a cluster."""

    def __init__(self) -> None:
        self.kills = 0
        self.was_killed = asyncio.Event()

    def kill_all(self) -> None:
        self.kills += 1
        self.was_killed.set()


async def two_signals(cluster: Killable) -> None:
    wish = stopping.watch_signals(cast(LocalCluster, cluster))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(wish.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    # Signals come in order: when this one has come, the one before it has too.
    seen = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, seen.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(seen.wait(), 5)


async def test_a_signal_that_comes_twice_at_once_is_one_wish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopping, "SAME_WISH_S", 60.0)
    cluster = Killable()
    await two_signals(cluster)
    assert cluster.kills == 0


async def test_a_second_wish_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "SAME_WISH_S", 0.0)
    cluster = Killable()
    await two_signals(cluster)
    await asyncio.wait_for(cluster.was_killed.wait(), 5)
    assert cluster.kills == 1


async def test_work_that_is_done_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await stopping.first_of(asyncio.Event(), work()) == 7


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
async def test_any_error_of_the_work_comes_as_itself(kind: type[Exception]) -> None:
    async def work() -> int:
        raise kind("why")

    with pytest.raises(kind, match="why"):
        await stopping.first_of(asyncio.Event(), work())


async def test_a_wish_to_stop_ends_the_work() -> None:
    wish, ended = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        wish.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 7

    assert await stopping.first_of(wish, work()) is None
    assert ended.is_set()
