"""Whether the parts of a pool agree with one another. Looks at everything, changes nothing."""

from shared.kv.block_tree import BlockTree
from shared.kv.holders import HolderTable
from shared.kv.ids import Slot
from shared.kv.slots import SlotState, SlotTable


def check_parts(slots: SlotTable, holders: HolderTable, tree: BlockTree) -> None:
    """Raises AssertionError when a slot is lost, has two owners, or is counted wrongly."""
    slots.check_integrity()
    holders.check_integrity()
    tree.check_integrity(holders.num_holds)
    owned: set[Slot] = set()
    for _, _, holding in holders.all():
        assert not owned & holding.own, "a slot has two owners"
        owned |= holding.own
        for slot in holding.own:
            assert slots.state(slot) in (SlotState.WRITING, SlotState.PRIVATE)
        for slot in holding.held:
            assert slots.state(slot) in (SlotState.SEALED, SlotState.DOOMED)
    assert len(owned) == slots.count(SlotState.WRITING) + slots.count(SlotState.PRIVATE)
    assert len(tree) == slots.count(SlotState.SEALED)
