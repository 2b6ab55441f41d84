"""The device cache of a decode instance, and the KV of those that are outside of it for a while.

`DeviceRooms` decides who is inside; this moves the KV, in the compute thread. The engine gets room
after it was counted as taken and gives it back before it is counted as free: calls run in order, so
it is never asked for more than it has. Knows no tokens, no pool and no gateway.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from shared.engine.decode import DecodeEngine
from shared.engine.kv_layout import KvLayout
from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError
from shared.worker.compute import ComputeThread
from shared.worker.device_rooms import DeviceRooms


@dataclass(frozen=True, slots=True)
class PoolBlocks:
    """A prompt's KV in slots of the node's pool."""

    pool: torch.Tensor
    slots: list[int]
    num_tokens: int


@dataclass(slots=True)
class Prepared:
    """What room for the next step came to."""

    ready: list[str] = field(default_factory=list)
    """They have room for it; others go on when somebody has ended or moved."""
    put_out: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """To be put out, but there is no host memory left: they have to go on elsewhere."""


class DecodeCache:
    """One per instance, used on its loop. Every handle that arrived ends with `end`."""

    def __init__(
        self,
        engine: DecodeEngine,
        compute: ComputeThread,
        layout: KvLayout,
        saved_limit_tokens: int,
        on_room: Callable[[str, int], None],
    ) -> None:
        self._engine = engine
        self._compute = compute
        self._block_tokens = layout.block_tokens
        self._saved_limit_tokens = saved_limit_tokens
        self._on_room = on_room
        """A handle holds so much room now."""
        self._rooms = DeviceRooms(engine.capacity_tokens)
        self._came_in: dict[str, asyncio.Event] = {}
        self._saved: dict[str, torch.Tensor] = {}
        self._saving_tokens = 0
        self._in_engine: set[str] = set()  # of the compute thread alone
        self.changed = asyncio.Event()
        """Somebody settled or ended: there may be room for who lacked it."""
        self.preemptions_total = 0

    @property
    def used_tokens(self) -> int:
        """As the engine counts."""
        return self._engine.used_tokens

    @property
    def saved_tokens(self) -> int:
        """Outside, in host memory."""
        return sum(kv.shape[2] for kv in self._saved.values()) + self._saving_tokens

    @property
    def num_outside(self) -> int:
        return self._rooms.num_outside

    async def arrive(self, handle: str, blocks: PoolBlocks, limit_tokens: int) -> None:
        """Copies the prompt's KV: inside when there is room, else where it waits for it."""
        num_tokens = blocks.num_tokens
        self._came_in[handle] = asyncio.Event()
        self._rooms.arrive(handle, min(num_tokens + 1, limit_tokens), limit_tokens)
        self._let_in()
        room = self._rooms.room(handle)
        if not room:
            await self._keep(handle, num_tokens, lambda: self._copy(blocks))
            return

        def load(start: int, end: int) -> None:
            slot = blocks.slots[start // self._block_tokens]
            self._engine.load_block(handle, blocks.pool, slot, start, end - start)

        await self._bring_in(handle, room, num_tokens, load)

    async def come_in(self, handle: str) -> None:
        """Until all its KV is inside."""
        kv = self._saved.get(handle)
        if kv is None:
            return
        await self._came_in[handle].wait()

        def load(start: int, end: int) -> None:
            self._engine.load_block(handle, kv[None, :, :, start:end], 0, start, end - start)

        await self._bring_in(handle, self._rooms.room(handle), kv.shape[2], load)
        self._saved.pop(handle, None)

    def settle(self, handle: str) -> None:
        """It takes part in steps from now on, and may be put out."""
        self._rooms.settle(handle)
        self.changed.set()

    async def prepare(self, needs: Mapping[str, int]) -> Prepared:
        """Room for so many tokens of each; the youngest are put out where there is too little."""
        prepared = Prepared()
        grown: dict[str, int] = {}
        for handle in self._rooms.in_line(needs):
            before = self._rooms.room(handle)
            if not await self._make_room(handle, needs, prepared):
                continue
            prepared.ready.append(handle)
            if self._rooms.room(handle) != before:
                grown[handle] = self._rooms.room(handle)
        if grown:
            await self._compute.run(lambda: self._grow(grown))
            for handle, room in grown.items():
                self._on_room(handle, room)
        if prepared.put_out:
            self._let_in()
        return prepared

    async def end(self, handle: str) -> None:
        """Gone, wherever it was; also said twice."""
        self._rooms.unsettle(handle)
        await self._compute.run(lambda: self._remove(handle))
        self._saved.pop(handle, None)
        self._came_in.pop(handle, None)
        self._rooms.end(handle)
        self._let_in()
        self.changed.set()

    # --- on the loop ------------------------------------------------------------------------

    def _let_in(self) -> None:
        for handle in self._rooms.let_in():
            self._came_in[handle].set()
            self._on_room(handle, self._rooms.room(handle))

    async def _make_room(self, handle: str, needs: Mapping[str, int], prepared: Prepared) -> bool:
        """False: it sits this step out, or is outside now."""
        while self._rooms.room(handle) and not self._rooms.grow(handle, needs[handle]):
            last = self._rooms.last_inside()
            if last is None or last not in needs:
                return False
            await self._put_out(last, needs[last], prepared)
        return self._rooms.room(handle) > 0

    async def _put_out(self, handle: str, num_tokens: int, prepared: Prepared) -> None:
        self._rooms.unsettle(handle)
        self.preemptions_total += 1
        try:
            await self._keep(handle, num_tokens - 1, lambda: self._take_out(handle))
        except ServiceError:
            prepared.refused.append(handle)  # its room is free when it has ended
            return
        prepared.put_out.append(handle)
        if handle in self._rooms:
            self._came_in[handle].clear()
            self._rooms.put_out(handle, num_tokens)

    async def _keep(self, handle: str, num_tokens: int, copy: Callable[[], torch.Tensor]) -> None:
        """In host memory, within the bound."""
        if self.saved_tokens + num_tokens > self._saved_limit_tokens:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{num_tokens} tokens find no room in the device cache, and in host memory "
                f"{self._saved_limit_tokens - self.saved_tokens} are free; retry elsewhere",
                is_retryable=True,
            )
        self._saving_tokens += num_tokens
        try:
            kv = await self._compute.run(copy)
        finally:
            self._saving_tokens -= num_tokens
        if handle in self._rooms:
            self._saved[handle] = kv

    async def _bring_in(
        self, handle: str, room: int, num_tokens: int, load: Callable[[int, int], None]
    ) -> None:
        """Block by block, so that steps of the batch come between."""
        await self._compute.run(lambda: self._add(handle, room))
        for start in range(0, num_tokens, self._block_tokens):
            end = min(start + self._block_tokens, num_tokens)
            await self._compute.run(partial(load, start, end))

    # --- in the compute thread --------------------------------------------------------------

    def _add(self, handle: str, room: int) -> None:
        self._engine.add(handle, room)
        self._in_engine.add(handle)

    def _grow(self, grown: Mapping[str, int]) -> None:
        for handle, room in grown.items():
            if handle in self._in_engine:
                self._engine.grow(handle, room)

    def _take_out(self, handle: str) -> torch.Tensor:
        kv = self._engine.saved(handle)
        self._remove(handle)
        return kv

    def _remove(self, handle: str) -> None:
        if handle in self._in_engine:
            self._in_engine.remove(handle)
            self._engine.remove(handle)

    def _copy(self, blocks: PoolBlocks) -> torch.Tensor:
        """[layer, 2, token, kv_head, head_dim] of the prompt."""
        num_tokens, block_tokens = blocks.num_tokens, self._block_tokens
        shape = blocks.pool.shape
        kv = blocks.pool.new_empty(shape[1], 2, num_tokens, *shape[4:])
        for index, slot in enumerate(blocks.slots):
            start = index * block_tokens
            count = min(block_tokens, num_tokens - start)
            kv[:, :, start : start + count] = blocks.pool[slot, :, :, :count]
        return kv
