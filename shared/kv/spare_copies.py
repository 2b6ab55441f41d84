"""Which blocks a pool lets go first: those that other nodes have too. Decides only."""

import heapq
from collections import Counter
from collections.abc import Sequence

from shared.kv.block_tree import BlockPlace
from shared.kv.ids import BlockKey


def spare_first(
    victims: Sequence[BlockPlace], num_copies: Sequence[int], count: int
) -> list[BlockKey]:
    """Up to `count` of the next victims, each before its parent, those with copies elsewhere first.

    `victims` are in the order of the policy, and all that is below one of them is among them. A
    last copy goes only when no spare one of them can.
    """
    index_of = {place.key: index for index, place in enumerate(victims)}
    num_below = Counter(place.parent for place in victims)
    ready = [
        (num_copies[index] == 0, index)
        for index, place in enumerate(victims)
        if not num_below[place.key]
    ]
    heapq.heapify(ready)
    chosen: list[BlockKey] = []
    while ready and len(chosen) < count:
        place = victims[heapq.heappop(ready)[1]]
        chosen.append(place.key)
        num_below[place.parent] -= 1
        parent = None if place.parent is None else index_of.get(place.parent)
        if parent is not None and not num_below[place.parent]:
            heapq.heappush(ready, (num_copies[parent] == 0, parent))
    return chosen
