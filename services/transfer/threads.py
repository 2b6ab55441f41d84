"""Work in threads that is over when its caller is: no thread is left in a slot that is free."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def settled(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for all of them, whatever happens to this task meanwhile; their errors stay in them."""
    waiting = list(futures)
    is_cancelled = False
    while any(not future.done() for future in waiting):
        try:
            await asyncio.wait([future for future in waiting if not future.done()])
        except asyncio.CancelledError:
            is_cancelled = True
    for future in waiting:
        if not future.cancelled():
            future.exception()
    if is_cancelled:
        raise asyncio.CancelledError
