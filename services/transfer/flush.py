"""Empties the books of a tier of all that nobody holds, without holding up the loop."""

import asyncio
from collections.abc import Callable

from shared.kv.block_pool import BlockPool
from shared.kv.ids import Slot

BATCH = 2_048
"""Blocks between two turns of other tasks: some milliseconds."""


async def flush_pool(
    blocks: BlockPool, on_freed: Callable[[list[Slot]], None] = lambda _slots: None
) -> int:
    """Evict what can go, the leaves first; how many blocks went.

    No more goes than was there at the start: what comes meanwhile is not waited for.
    `on_freed` hears of the slots of each batch before anything else can use them.
    """
    left = blocks.counts.sealed
    num_gone = 0
    while left > num_gone:
        places = blocks.next_victims(min(left - num_gone, BATCH))
        slots = {place.key: found.slot for place in places if (found := blocks.readable(place.key))}
        blocks.evict_blocks(list(slots))
        freed = [slot for key, slot in slots.items() if not blocks.is_readable(key)]
        if not freed:
            break
        on_freed(freed)
        num_gone += len(freed)
        await asyncio.sleep(0)
    return num_gone
