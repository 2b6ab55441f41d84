"""Registered memory beside the pool, for what transfers read on the side. Owns no pool memory."""

import asyncio
import mmap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.transport.base import PeerLost
from shared.transport.rdma_plan import SCRATCH_BYTES, Scratch
from shared.transport.ucx_context import UcxError
from shared.transport.ucx_thread import UcxThread

CHUNKS = 16
"""Registered at once when there is none left."""


def address_of(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class ScratchMemory:
    """Chunks that a job takes and gives back; grows with the jobs that run at once."""

    def __init__(self, thread: UcxThread) -> None:
        self._thread = thread
        self._free: list[Scratch] = []
        self._growing = asyncio.Lock()
        self._maps: list[mmap.mmap] = []

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[Scratch]:
        async with self._growing:
            if not self._free:
                await self._grow()
            scratch = self._free.pop()
        try:
            yield scratch
        finally:
            self._free.append(scratch)

    def close(self) -> None:
        """After the thread has ended."""
        self._free.clear()
        self._maps.clear()  # unmapped with the last view

    async def _grow(self) -> None:
        memory = mmap.mmap(-1, CHUNKS * SCRATCH_BYTES)
        address = address_of(np.frombuffer(memory, dtype=np.uint8))
        # Kept before it is registered: whoever waits for that may be cancelled.
        self._maps.append(memory)
        thread = self._thread
        try:
            region = await asyncio.wrap_future(
                thread.run(lambda: thread.register(address, len(memory)))
            )
        except UcxError as error:
            # Such as too little memory that may be locked: peers are read another way.
            raise PeerLost(f"no memory could be registered with UCX: {error}") from None
        view = memoryview(memory)
        self._free += [Scratch(region, n * SCRATCH_BYTES, view) for n in range(CHUNKS)]
