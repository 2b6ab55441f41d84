"""How many slots of a pool are in which state, at one time."""

from dataclasses import dataclass

from shared.kv.block_tree import BlockTree
from shared.kv.holders import HolderTable
from shared.kv.slots import SlotState, SlotTable


@dataclass(frozen=True, slots=True)
class PoolCounts:
    total: int
    free: int
    writing: int
    private: int
    sealed: int
    doomed: int
    held: int
    evictable: int
    evictions_total: int
    quarantined_total: int


def counts_of(
    slots: SlotTable, holders: HolderTable, tree: BlockTree, evictions: int, quarantined: int
) -> PoolCounts:
    return PoolCounts(
        total=slots.num_slots,
        free=slots.count(SlotState.FREE),
        writing=slots.count(SlotState.WRITING),
        private=slots.count(SlotState.PRIVATE),
        sealed=slots.count(SlotState.SEALED),
        doomed=slots.count(SlotState.DOOMED),
        held=holders.num_held_slots,
        evictable=tree.num_evictable,
        evictions_total=evictions,
        quarantined_total=quarantined,
    )
