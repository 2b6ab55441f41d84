"""An event loop whose time is virtual: waiting costs nothing, and the same run is the same again.

`with virtual_time() as loop:` the clock of services (shared.runtime.clock) is the loop's meanwhile.
"""

import asyncio
import selectors
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from shared.runtime import clock


class _Selector(selectors.SelectSelector):
    """Where nothing is ready the time of the next timer comes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and nothing will ever happen"
            self.now_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time goes on only while all wait. Threads are not waited for: use InlineExecutor."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class InlineExecutor(Executor):
    """Does the work where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  (the future's)
            future.set_exception(error)
        return future


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    before = clock.time
    clock.time = types.SimpleNamespace(monotonic=loop.time)  # type: ignore[assignment]
    try:
        yield loop
    finally:
        clock.time = before
        loop.close()
