"""Waiting for threads that touch memory, whatever happens to the task that waits."""

import asyncio
from collections.abc import Sequence
from typing import Any


async def settled(futures: Sequence[asyncio.Future[Any]]) -> None:
    """All of them are done when this returns or raises; a cancellation is raised at the end."""
    is_cancelled = False
    while pending := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            is_cancelled = True
    for future in futures:
        if not future.cancelled():
            future.exception()  # seen: the caller has an error of its own or gets this one
    if is_cancelled:
        raise asyncio.CancelledError
