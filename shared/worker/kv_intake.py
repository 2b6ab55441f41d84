"""Brings the KV of one prompt from the prefill node into the own pool and verifies it."""

import logging
from collections.abc import Iterable

from shared.kv import block_keys
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.decode import DecodeRun, Handoff, KvBlock, KvReady
from shared.messages.pool import AllocateReply, Blocks, PullItem, SealBlock
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.worker.grid import Grid
from shared.worker.pool_client import PoolClient
from shared.worker.prefix import Prefix

log = logging.getLogger("moonpool.worker")
MAX_ITEMS_PER_PULL = 128
PULL_TIMEOUT_MS = 10_000


class KvIntake:
    """Owns which layers of which blocks have arrived. All is held under the attempt's handle."""

    def __init__(
        self,
        pool: PoolClient,
        run: DecodeRun,
        grid: Grid,
        num_layers: int,
        prefix: Prefix,
        own: AllocateReply,
    ) -> None:
        self._pool = pool
        self._run = run
        self._handle = run.ref.handle
        self._grid = grid
        self._all_layers = (1 << num_layers) - 1
        self._prefix = prefix.blocks
        self._first_own = prefix.num_blocks
        self._own = own
        self._arrived = [0] * len(own.slots)
        """A bit for each layer of each own block."""
        self._sealed = Blocks()
        """The leading own blocks that are verified and no longer written."""
        self.moved_bytes = 0
        self.seconds = 0.0
        self.transports: set[str] = set()
        self._moves: list[tuple[float, int]] = []
        """When each pull was done, and its bytes."""

    async def pull_hinted(self, hints: Iterable[KvReady]) -> None:
        """Pull what is said to be ready. A failure costs time: the hand-over names it all again."""
        by_node: dict[str, tuple[NodeRef, list[PullItem]]] = {}
        for hint in hints:
            if not self._is_own(hint.block.index):
                continue
            node, items = by_node.setdefault(hint.node.incarnation, (hint.node, []))
            wanted = _mask(hint.first_layer, hint.end_layer) & self._all_layers
            items.extend(self._items(hint.block, wanted))
        for node, items in by_node.values():
            try:
                await self._pull(node, items)
            except ServiceError as error:
                if error.code == ErrorCode.POOL_LOST:
                    raise
                log.info("%s: layers did not come early: %s", self._handle, error)

    async def complete(self, handoff: Handoff) -> Blocks:
        """All blocks of the prompt, arrived, verified and sealed in the own pool."""
        self._check(handoff)
        try:
            await self._pull_and_seal(handoff)
        except ServiceError as error:
            if error.code == ErrorCode.POOL_LOST:
                raise
            log.warning("%s: pulling all blocks once more: %s", self._handle, error)
            self._arrived = [0] * len(self._own.slots)
            await self._once_more(handoff)
        return _joined(self._prefix, self._sealed)

    def bytes_until(self, when_s: float) -> int:
        """What had arrived by then."""
        return sum(num_bytes for done_s, num_bytes in self._moves if done_s <= when_s)

    def _check(self, handoff: Handoff) -> None:
        """Every block of the prompt, whole and with a checksum: one without would prove nothing."""
        num_tokens = self._run.num_tokens
        wanted = [
            (index, self._grid.valid_tokens(index, num_tokens))
            for index in range(self._grid.num_blocks(num_tokens))
        ]
        named = [(block.index, block.valid_tokens) for block in handoff.blocks if block.checksum]
        if named != wanted:
            raise ServiceError(
                ErrorCode.KV_LOST,
                f"the hand-over names {len(named)} whole blocks with a checksum, the prompt has "
                f"{len(wanted)}",
                is_retryable=True,
            )

    async def _once_more(self, handoff: Handoff) -> None:
        try:
            await self._pull_and_seal(handoff)
        except ServiceError as error:
            raise ServiceError(
                ErrorCode.KV_LOST,
                f"the prompt's KV did not arrive from {handoff.node.id}: {error}",
                is_retryable=True,
            ) from error

    async def _pull_and_seal(self, handoff: Handoff) -> None:
        own = handoff.blocks[self._first_own + len(self._sealed.slots) :]
        items = [item for block in own for item in self._items(block, self._all_layers)]
        await self._pull(handoff.node, items)
        num_keyed = 0
        if self._run.cache == "on":
            num_keys = block_keys.num_keys(self._run.chain)
            num_keyed = sum(block.is_sealed and block.index < num_keys for block in own)
        if num_keyed:
            await self._seal(
                own[:num_keyed], block_keys.take(self._run.chain, own[0].index + num_keyed)
            )
        if own[num_keyed:]:
            await self._seal(own[num_keyed:], b"")

    async def _seal(self, blocks: list[KvBlock], chain: bytes) -> None:
        """The checksum of the sender proves the arrival."""
        sealed = await self._pool.seal(
            self._handle,
            blocks[0].index,
            chain,
            [
                SealBlock(
                    slot=self._own.slots[block.index - self._first_own],
                    generation=self._own.generations[block.index - self._first_own],
                    valid_tokens=block.valid_tokens,
                    key=block_keys.key_at(chain, block.index) if chain else b"",
                    checksum=block.checksum,
                )
                for block in blocks
            ],
        )
        self._sealed = _joined(self._sealed, sealed)

    def _is_own(self, index: int) -> bool:
        return 0 <= index - self._first_own < len(self._own.slots)

    def _items(self, block: KvBlock, wanted: int) -> list[PullItem]:
        """Runs of the wanted layers of a block that have not arrived."""
        own = block.index - self._first_own
        missing = wanted & ~self._arrived[own]
        return [
            PullItem(
                peer_slot=block.slot,
                peer_generation=block.generation,
                slot=self._own.slots[own],
                valid_tokens=block.valid_tokens,
                first_layer=first,
                end_layer=end,
            )
            for first, end in _runs(missing)
        ]

    async def _pull(self, node: NodeRef, items: list[PullItem]) -> None:
        own_of_slot = {slot: own for own, slot in enumerate(self._own.slots)}
        for start in range(0, len(items), MAX_ITEMS_PER_PULL):
            batch = items[start : start + MAX_ITEMS_PER_PULL]
            reply = await self._pool.pull(self._handle, node, batch, remaining_ms=PULL_TIMEOUT_MS)
            self.moved_bytes += reply.moved_bytes
            self.seconds += reply.seconds
            self.transports.add(reply.transport)
            self._moves.append((monotonic_s(), reply.moved_bytes))
            for item in batch:
                mask = _mask(item.first_layer, item.end_layer)
                self._arrived[own_of_slot[item.slot]] |= mask


def _mask(first: int, end: int) -> int:
    return (1 << end) - (1 << first)


def _runs(mask: int) -> list[tuple[int, int]]:
    """[first, end) of each run of ones."""
    runs: list[tuple[int, int]] = []
    layer = 0
    while mask >> layer:
        if mask >> layer & 1:
            first = layer
            while mask >> layer & 1:
                layer += 1
            runs.append((first, layer))
        else:
            layer += 1
    return runs


def _joined(first: Blocks, second: Blocks) -> Blocks:
    return Blocks(
        slots=[*first.slots, *second.slots],
        generations=[*first.generations, *second.generations],
        checksums=[*first.checksums, *second.checksums],
    )
