"""What a pool is told and answers with: held blocks, refusals, items to seal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shared.kv.ids import BlockKey, Generation, Slot


@dataclass(slots=True)
class HeldBlock:
    """A block somebody holds: where it is, in which use of the slot, and its checksum.

    A value; not frozen, for a lease makes many and a frozen one takes four times as long.
    """

    slot: Slot
    generation: Generation
    checksum: int
    key: BlockKey | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why slots were not given, with the numbers that were compared."""

    reason: Literal["pool_full", "over_cap"]
    num_wanted: int
    num_available: int


@dataclass(slots=True)
class SealItem:
    """One finished slot; `key` None makes it private to the handle. A value, as HeldBlock."""

    slot: Slot
    generation: Generation
    checksum: int
    key: BlockKey | None = None


@dataclass(slots=True)
class SealedItem:
    """What became of a SealItem: `is_readable` false means private. A value, as HeldBlock."""

    block: HeldBlock
    is_readable: bool
    is_duplicate: bool = False


class NotYours(Exception):
    """A slot is named that is not a WRITING slot of this handle in this generation."""


def has_key(item: SealItem) -> bool:
    return item.key is not None


def check_keys(start: int, chain: Sequence[BlockKey], items: Sequence[SealItem]) -> None:
    """Raises ValueError unless the keyed items are chain[start], chain[start + 1], …"""
    keys = [item.key for item in items if item.key is not None]
    if start >= 0 and [*chain[start : start + len(keys)]] == keys:
        return
    for index, key in enumerate(keys, start):
        if not 0 <= index < len(chain) or chain[index] != key:
            raise ValueError(f"chain: key {index} is not {key!r}")
