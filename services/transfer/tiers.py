"""The tiers of a formatted pool and what keeps them in order: wiring alone."""

from collections.abc import Sequence
from typing import Any

from services.transfer import pins, replicator
from services.transfer.flush import flush_pool
from services.transfer.node import FormattedNode
from services.transfer.node_pool import NodePool
from services.transfer.pins import Pins
from services.transfer.promoter import Promoter
from services.transfer.replicator import Replicator
from services.transfer.room_keeper import AskCopies, RoomKeeper
from services.transfer.settings import TransferSettings
from services.transfer.ssd_files import SsdFiles
from services.transfer.ssd_tier import SsdTier
from shared.kv.block_pool import BlockPool
from shared.kv.ids import BlockKey
from shared.kv.leaving import chains_to_hand_over
from shared.kv.second_use import SecondUse
from shared.kv.watermarks import Watermarks
from shared.messages.common import NodeRef
from shared.messages.transfer import DropReply, FlushReply
from shared.runtime.tasks import Tasks


class Tiers:
    """DRAM and, where a folder is set, SSD of one node."""

    def __init__(
        self,
        node: FormattedNode,
        settings: TransferSettings,
        own: NodeRef,
        ask_copies: AskCopies | None = None,
    ) -> None:
        pool = node.pool
        self._pool = pool
        self._uses = SecondUse(pool.blocks.is_readable)
        self.ssd = _ssd_of(pool, settings, own.id)
        self.promoter = Promoter(pool, self.ssd)
        self.pins = Pins(pool, self.promoter, settings.pin_share)
        self.replicator = Replicator(pool, node.fetcher, own, settings.replicate_share)
        is_demoting = self.ssd is not None and settings.ssd_write == "demotion"
        self._is_writing_second_uses = self.ssd is not None and not is_demoting
        self._marks = marks = Watermarks.of_shares(
            settings.free_low,
            settings.free_high,
            pool.blocks.counts.total,
            at_least=1 if is_demoting else 0,
        )
        self._keeper = RoomKeeper(pool, marks, self.ssd if is_demoting else None, ask_copies)
        pool.on_used = self._on_used

    def start(self, tasks: Tasks) -> None:
        tasks.start_soon(self._keeper.run(), name="room keeper")
        tasks.start_contained(self._pool.touch(), name="touch pages")
        if self.ssd is not None:
            tasks.start_soon(self.ssd.run(), name="SSD tier")

    def drop(self, key: BlockKey) -> DropReply:
        """Forget a block and what is below it, here and on the SSD."""
        num_dram = len(self._pool.blocks.drop_blocks(key))
        num_disk = 0 if self.ssd is None else self.ssd.drop(key)
        self._pool.on_change()
        return DropReply(num_dram_blocks=num_dram, num_disk_blocks=num_disk)

    async def flush(self, *, is_ssd: bool) -> FlushReply:
        """Forget what nobody holds: here, and on the SSD when that is asked for."""
        ssd, num_disk = self.ssd_blocks, 0
        if is_ssd and self.ssd is not None and ssd is not None:
            num_disk = await flush_pool(ssd, self.ssd.clear_records)
        num_dram = await flush_pool(self._pool.blocks)
        self._pool.on_change()
        return FlushReply(
            num_dram_blocks=num_dram,
            num_disk_blocks=num_disk,
            kept_dram_blocks=self._pool.blocks.counts.sealed,
            kept_disk_blocks=0 if ssd is None else ssd.counts.sealed,
        )

    def on_change(self) -> None:
        """The pool's blocks or slots changed."""
        self._keeper.poke()

    @property
    def ssd_blocks(self) -> BlockPool | None:
        return None if self.ssd is None else self.ssd.blocks

    def worth_keeping(self, max_blocks: int) -> list[list[BlockKey]]:
        """Chains that a node that leaves hands to others."""
        uses = self._uses
        return chains_to_hand_over(
            uses.recent(), self._pool.blocks.path, uses.is_proven, max_blocks
        )

    def report(self) -> dict[str, Any]:
        """Fields of the node's report."""
        ssd = self.ssd
        dram = {
            "pinned_blocks": self.pins.num_blocks,
            "slots_low": self._marks.low,
            "slots_high": self._marks.high,
        }
        if ssd is None:
            return dram
        blocks = ssd.blocks
        counts = None if blocks is None else blocks.counts
        return {
            **dram,
            "ssd_state": ssd.state,
            "ssd_slots_total": 0 if counts is None else counts.total,
            "ssd_blocks": 0 if counts is None else counts.sealed,
            "ssd_bytes_read_total": ssd.counts.bytes_read,
            "ssd_bytes_written_total": ssd.counts.bytes_written,
            "ssd_dropped_total": ssd.counts.dropped,
            "ssd_errors_total": ssd.counts.errors,
            "ssd_bad_blocks_total": ssd.counts.bad_blocks,
            "ssd_read_bytes_per_s": ssd.read_bytes_per_s,
        }

    async def close(self) -> None:
        self.pins.stop()
        if self.ssd is not None:
            await self.ssd.close()

    def _on_used(self, owner: str, handle: str, keys: Sequence[BlockKey]) -> None:
        if owner in (replicator.OWNER, pins.OWNER):
            return  # nobody asked a question with it
        # All attempts of a request, on whatever instance, are one use.
        num_proven = self._uses.used(handle.split("/")[0], keys)
        if num_proven and self.ssd is not None and self._is_writing_second_uses:
            self.ssd.want(keys[:num_proven])


def _ssd_of(pool: NodePool, settings: TransferSettings, node: str) -> SsdTier | None:
    if settings.ssd_dir is None:
        return None
    files = SsdFiles(
        settings.ssd_dir, node, pool.root, pool.geometry.block_bytes, settings.ssd_bytes
    )
    return SsdTier(
        pool,
        files,
        num_threads=settings.ssd_threads,
        queue_blocks=settings.ssd_queue_blocks,
        on_change=pool.on_change,
    )
