"""Waiting for something that others bring about: until it is so, or the deadline."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 0.02
PATIENCE = float(os.environ.get("MOONPOOL_TEST_PATIENCE", "1"))
"""Every deadline here times this: for machines that are far slower than those the tests are for."""


def wait_until(
    condition: Callable[[], T], *, timeout_s: float = 10.0, what: str = "condition"
) -> T:
    """The first true value of `condition`; fails the test at the deadline."""
    deadline_s = time.monotonic() + timeout_s * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s * PATIENCE:g} s: {what} (last: {value!r})")
        time.sleep(INTERVAL_S)


async def until(
    condition: Callable[[], T | Awaitable[T]],
    *,
    timeout_s: float = 10.0,
    what: str = "condition",
) -> T:
    """As `wait_until` on the loop; `condition` may be async."""
    deadline_s = time.monotonic() + timeout_s * PATIENCE
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s * PATIENCE:g} s: {what} (last: {value!r})")
        await asyncio.sleep(INTERVAL_S)
