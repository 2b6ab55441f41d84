"""Which nodes get a copy of a prefix, and which give theirs up, to have as many as wanted."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaNode:
    """A live node of the model."""

    node: str
    incarnation: str
    num_blocks: int
    """Of the prefix, how many leading blocks are there."""
    free_slots: int
    bytes_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    source: ReplicaNode | None
    """Who is copied; None: nobody has all of it."""
    holders: tuple[ReplicaNode, ...]
    to_add: tuple[ReplicaNode, ...] = ()
    """Best first; more than are missing, for one may refuse."""
    num_missing: int = 0
    to_drop: tuple[ReplicaNode, ...] = ()


def change_of(nodes: Sequence[ReplicaNode], num_blocks: int, wanted: int) -> ReplicaChange:
    """Copies go where most of the prefix and the most room is; the fullest nodes give theirs up."""
    holders = sorted(
        (node for node in nodes if node.num_blocks >= num_blocks),
        key=lambda node: (node.bytes_in_flight, node.node),
    )
    source = holders[0] if holders else None
    if len(holders) > wanted:
        fullest = sorted(holders, key=lambda node: (node.free_slots, node.node))
        return ReplicaChange(
            source, tuple(holders), to_drop=tuple(fullest[: len(holders) - wanted])
        )
    others = sorted(
        (node for node in nodes if node.num_blocks < num_blocks),
        key=lambda node: (-node.num_blocks, -node.free_slots, node.node),
    )
    missing = wanted - len(holders)
    return ReplicaChange(source, tuple(holders), tuple(others) if missing else (), missing)
