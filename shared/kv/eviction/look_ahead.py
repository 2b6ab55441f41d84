"""Which blocks would go next, one after the other, without letting any go."""

from shared.kv.block_tree import BlockPlace, BlockTree
from shared.kv.eviction.base import EvictionPolicy
from shared.kv.ids import Slot


def look_ahead(tree: BlockTree, policy: EvictionPolicy, limit: int) -> list[BlockPlace]:
    """The next victims in order; a parent follows when all below it would be gone.

    Exact for policies with a score for each block; one with a hand moves it as far as it looked.
    """
    found: list[Slot] = []
    gone: set[Slot] = set()
    exposed: set[Slot] = set()
    while len(found) < limit and (slot := policy.victim()) is not None:
        policy.withdraw(slot)
        found.append(slot)
        gone.add(slot)
        parent = tree.parent_of(slot)
        if parent is not None and tree.is_candidate(parent, gone):
            policy.offer(parent)
            exposed.add(parent)
    for slot in exposed - gone:
        policy.withdraw(slot)
    for slot in found:
        if slot not in exposed:
            policy.offer(slot)
    places = (tree.place_at(slot) for slot in found)
    return [place for place in places if place is not None]
