"""The one thread in which a process computes; calls run in the order they were made."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ComputeThread:
    """Keeps torch off the event loop. A call that has begun is never abandoned."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, function: Callable[[], T]) -> T:
        """The result of `function`. When cancelled, returns only after the thread has left it.

        So whoever is cancelled may free the slots that the call was reading or writing.
        """
        inner = self._executor.submit(function)
        outer = asyncio.wrap_future(inner)
        try:
            return await asyncio.shield(outer)
        except asyncio.CancelledError:
            if not inner.cancel():
                await _ended(outer)
            raise

    def close(self) -> None:
        """Take no more calls; does not wait for the one that runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)


async def _ended(future: "asyncio.Future[T]") -> None:
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            continue  # `run` raises the first one once the thread is out
    if not future.cancelled():
        future.exception()  # seen: nobody wants the outcome any more
