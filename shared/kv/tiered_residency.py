"""What a node holds in DRAM and on disk together, as one set: each block once, in its best tier.

Both tiers are prefix-closed by themselves, so their union is. Changes that say again what is known
already do no harm: they happen when a block changes in both tiers at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shared.kv.block_pool import BlockPool
from shared.kv.block_tree import BlockPlace
from shared.kv.ids import BlockKey
from shared.kv.residency_log import StoredBlocks, runs_of

TierName = Literal["dram", "disk"]


@dataclass(frozen=True, slots=True)
class TieredChange:
    """`removed` are (head, key): they are in no tier any more. They come before what is stored."""

    stored: tuple[tuple[TierName, StoredBlocks], ...]
    removed: tuple[tuple[BlockKey, BlockKey], ...]


def drain(dram: BlockPool, disk: BlockPool | None) -> Iterator[TieredChange]:
    """Changes until both logs are empty; the tiers may change between two of them."""
    while True:
        if (change := dram.drain_change()) is not None:
            stored: list[tuple[TierName, StoredBlocks]] = [("dram", run) for run in change.stored]
            moved: list[BlockPlace] = []
            removed = []
            for head, key in change.removed:
                place = None if disk is None else disk.place(key)
                if place is None:
                    removed.append((head, key))
                else:
                    moved.append(place)
            stored += [("disk", run) for run in runs_of(moved)]
            yield TieredChange(tuple(stored), tuple(removed))
        elif disk is not None and (change := disk.drain_change()) is not None:
            gone = tuple((head, key) for head, key in change.removed if not dram.is_readable(key))
            places = _only_on(disk, dram, change.stored)
            if gone or places:
                yield TieredChange(tuple(("disk", run) for run in runs_of(places)), gone)
        else:
            return


def page(
    dram: BlockPool, disk: BlockPool | None, cursor: int, max_blocks: int
) -> tuple[list[tuple[TierName, StoredBlocks]], int | None]:
    """A page of the inventory; slots of the disk are numbered after those of the pool."""
    end = dram.counts.total
    if cursor < end:
        runs, following = dram.inventory(cursor, max_blocks)
        is_last = disk is None
        return [
            ("dram", run) for run in runs
        ], end if following is None and not is_last else following
    if disk is None:
        return [], None
    runs, following = disk.inventory(cursor - end, max_blocks)
    places = _only_on(disk, dram, runs)
    return [("disk", run) for run in runs_of(places)], (
        None if following is None else end + following
    )


def _only_on(
    disk: BlockPool, dram: BlockPool, runs: list[StoredBlocks] | tuple[StoredBlocks, ...]
) -> list[BlockPlace]:
    keys = (key for run in runs for key in run.keys if not dram.is_readable(key))
    return [place for key in keys if (place := disk.place(key)) is not None]
