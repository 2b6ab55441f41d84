"""Whether KV that was read from the pool is what its writer sealed. Looks at the pool's bytes."""

import asyncio
from collections.abc import Sequence

import numpy as np

from shared.messages.common import ErrorCode
from shared.messages.decode import KvBlock
from shared.messages.transfer import KvGeometry
from shared.runtime.errors import ServiceError
from shared.transport.checksum import block_checksum


async def check_handed_over(
    data: memoryview, geometry: KvGeometry, slots: Sequence[int], blocks: Sequence[KvBlock]
) -> None:
    """After the blocks were loaded from these slots: they were whole. In a thread, off the batch.

    Raises ServiceError KV_LOST, retryable: the prompt is computed again.
    """
    damaged = await asyncio.to_thread(_first_damaged, data, geometry, slots, blocks)
    if damaged is not None:
        raise ServiceError(
            ErrorCode.KV_LOST,
            f"block {damaged} of the prompt is damaged in the pool",
            is_retryable=True,
        )


def _first_damaged(
    data: memoryview, geometry: KvGeometry, slots: Sequence[int], blocks: Sequence[KvBlock]
) -> int | None:
    pool = np.frombuffer(data, dtype=np.uint8)
    for slot, block in zip(slots, blocks, strict=True):
        start = slot * geometry.block_bytes
        found = pool[start : start + geometry.block_bytes]
        if block_checksum(found, geometry, block.valid_tokens) != block.checksum:
            return block.index
    return None
