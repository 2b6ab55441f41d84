"""Which nodes get a copy and which give one up."""

from shared.scheduling.replica_choice import ReplicaNode, change_of


def node(name: str, num_blocks: int, free_slots: int = 10, busy: int = 0) -> ReplicaNode:
    return ReplicaNode(name, f"{name}-1", num_blocks, free_slots, busy)


def names(nodes: tuple[ReplicaNode, ...]) -> list[str]:
    return [each.node for each in nodes]


def test_copies_go_where_most_of_it_is_and_then_where_room_is() -> None:
    nodes = [node("a", 5), node("b", 0, 50), node("c", 3, 1), node("d", 0, 90), node("e", 5, 9, 1)]
    change = change_of(nodes, 5, wanted=4)
    assert names(change.holders) == ["a", "e"]
    assert change.source == nodes[0]
    assert names(change.to_add) == ["c", "d", "b"]
    assert change.num_missing == 2
    assert change.to_drop == ()


def test_the_fullest_nodes_give_their_copies_up() -> None:
    nodes = [node("a", 5, 7), node("b", 5, 2), node("c", 6, 4)]
    assert names(change_of(nodes, 5, wanted=1).to_drop) == ["b", "c"]
    assert names(change_of(nodes, 5, wanted=0).to_drop) == ["b", "c", "a"]
    assert change_of(nodes, 5, wanted=3).to_drop == ()
    assert change_of(nodes, 5, wanted=3).num_missing == 0


def test_without_a_whole_copy_there_is_no_source() -> None:
    change = change_of([node("a", 4)], 5, wanted=1)
    assert change.source is None
    assert change.num_missing == 1
