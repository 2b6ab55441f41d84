"""What ends a command: its work, its work's error, or the wish to stop."""

import asyncio

import pytest

from scripts.cli.stopping import first_of


async def test_work_that_is_done_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await first_of(asyncio.Event(), work()) == 7


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
async def test_any_error_of_the_work_comes_as_itself(kind: type[Exception]) -> None:
    async def work() -> int:
        raise kind("why")

    with pytest.raises(kind, match="why"):
        await first_of(asyncio.Event(), work())


async def test_a_wish_to_stop_ends_the_work() -> None:
    stopping, ended = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        stopping.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 7

    assert await first_of(stopping, work()) is None
    assert ended.is_set()
