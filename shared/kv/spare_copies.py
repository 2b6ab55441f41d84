"""Which blocks a pool lets go first: those that other nodes have too. Decides only."""

from collections.abc import Sequence

from shared.kv.block_tree import BlockPlace
from shared.kv.ids import BlockKey


def spare_first(
    victims: Sequence[BlockPlace], num_copies: Sequence[int], count: int
) -> list[BlockKey]:
    """Up to `count` of the next victims, those with copies elsewhere first, each before its parent.

    `victims` are in the order of the policy, every child before its parent and none left out. A
    block stays for a child of it that stays, and the last copy goes only when the spare ones among
    the victims do not make room enough.
    """
    kept_for_child: set[BlockKey] = set()
    spare: list[BlockKey] = []
    last: list[BlockKey] = []
    for place, copies in zip(victims, num_copies, strict=True):
        if copies > 0 and place.key not in kept_for_child:
            spare.append(place.key)
            continue
        last.append(place.key)
        if place.parent is not None:
            kept_for_child.add(place.parent)
    return [*spare, *last][:count]
