"""Ctrl-C and friends: the first one stops in order, the second one kills at once."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from scripts.cli.output import console

T = TypeVar("T")
SAME_WISH_S = 0.3
"""`timeout` and some supervisors signal the process and then its group: that is one wish."""


class Killable(Protocol):
    def kill_all(self) -> None:
        """SIGKILL for everything at once."""


async def first_of(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work` or its error, or None when the wish to stop came first."""
    try:
        async with asyncio.TaskGroup() as group:
            wish = group.create_task(stopping.wait())
            task = group.create_task(work)
            await asyncio.wait({wish, task}, return_when=asyncio.FIRST_COMPLETED)
            wish.cancel()
            if not task.done():
                task.cancel()
                return None
    except ExceptionGroup as failed:
        if stopping.is_set():
            return None
        error = failed.exceptions[0]  # one task alone can fail
        raise error from error.__cause__
    return task.result()


def watch_signals(cluster: Killable) -> asyncio.Event:
    """The event of the first SIGINT, SIGTERM or SIGHUP; the second one kills at once."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_s = 0.0

    def on_signal() -> None:
        nonlocal first_s
        if stopping.is_set():
            if loop.time() - first_s < SAME_WISH_S:
                return
            console.print("killing everything")
            cluster.kill_all()
        else:
            console.print("stopping (Ctrl-C again kills at once)")
            first_s = loop.time()
            stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    return stopping
