"""A node without a pool: registers, renews, publishes events and answers inventories, and loses,
repeats or reorders its events when it is told to."""

import asyncio
import logging
import secrets
from typing import Any, Self

from shared.kv.ids import KEY_BYTES, SEGMENT_BLOCKS
from shared.messages import subjects
from shared.messages.index import (
    InventoryReply,
    InventoryRequest,
    NodeLeaseReply,
    RegisterNode,
    RemovedRun,
    RenewNode,
    ResidencyEvent,
    StoredRun,
)
from shared.messages.reports import NodeReport
from shared.messages.transfer import ReplicateReply, ReplicateRequest
from shared.runtime.bus import Bus
from shared.runtime.errors import NoResponder, ServiceError
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks

RENEW_S = 0.2
PLACE = 16
PAGE_PLACES = 5


class FakeNode:
    def __init__(self, bus: Bus, name: str, root: bytes, *, lease_ms: int = 3_000) -> None:
        self._bus = bus
        self.name = name
        self.root = root
        self.incarnation = secrets.token_hex(4)
        self.seq = 0
        self.depths: dict[bytes, int] = {}
        """By whole chain: how many of its leading blocks are here."""
        self.chains: list[bytes] = []
        """In the order they came; the places of an inventory."""
        self.epoch = ""
        self.registrations = 0
        self.inventories = 0
        self.replications: list[ReplicateRequest] = []
        self.lease_ms = lease_ms
        self._group = asyncio.TaskGroup()
        self._service: MicroService | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        await self.answer_inventories()
        await self.register()
        self._renewing = self._group.create_task(self._renew())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.fall_silent()
        await self.refuse_inventories()
        await self._group.__aexit__(None, None, None)

    def fall_silent(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def answer_inventories(self) -> None:
        log = logging.getLogger("test.fake-node")
        self._service = MicroService(self._bus, Tasks(self._group, log), log)
        endpoints: list[Endpoint[Any, Any]] = [
            Endpoint(
                "inventory",
                subjects.transfer(self.name, "inventory"),
                InventoryRequest,
                InventoryReply,
                self._inventory,
                "inventory",
            ),
            Endpoint(
                "replicate",
                subjects.transfer(self.name, "replicate"),
                ReplicateRequest,
                ReplicateReply,
                self._replicate,
                "replicate",
            ),
        ]
        await self._service.start(
            name="fake-node", version="0.0.1", description="", metadata={}, endpoints=endpoints
        )
        await self._bus.flush()

    async def refuse_inventories(self) -> None:
        if self._service is not None:
            await self._service.stop()
            await self._bus.flush()
            self._service = None

    async def register(self) -> NodeLeaseReply:
        asked = RegisterNode(
            node=self.name, incarnation=self.incarnation, root=self.root, lease_ms=self.lease_ms
        )
        reply = await self._bus.request(
            subjects.INDEX_REGISTER_NODE, asked, NodeLeaseReply, timeout_s=5
        )
        self.epoch = reply.index_epoch
        self.registrations += 1
        return reply

    async def renew(self) -> NodeLeaseReply:
        asked = RenewNode(
            node=self.name, incarnation=self.incarnation, seq=self.seq, lease_ms=self.lease_ms
        )
        return await self._bus.request(
            subjects.INDEX_RENEW_NODE, asked, NodeLeaseReply, timeout_s=5
        )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                reply = await self.renew()
                if reply.index_epoch != self.epoch:
                    await self.register()
            except NoResponder:
                continue
            except ServiceError as error:
                if not error.is_retryable:
                    raise

    # --- what it holds -------------------------------------------------------------------------
    def store_event(self, chain: bytes, start: int, end: int) -> ResidencyEvent:
        """Hold blocks [start, end) of the chain; the event is not sent yet."""
        self.depths[chain] = end
        if chain not in self.chains:
            self.chains.append(chain)
        return self._event(stored=_runs(chain, start, end))

    def remove_event(self, chain: bytes, start: int) -> ResidencyEvent:
        end, self.depths[chain] = self.depths[chain], start
        heads = b"".join(_key(chain, at - at % SEGMENT_BLOCKS) for at in range(start, end))
        keys = chain[start * KEY_BYTES : end * KEY_BYTES]
        return self._event(removed=[RemovedRun(heads=heads, keys=keys)])

    def _event(
        self, *, stored: list[StoredRun] | None = None, removed: list[RemovedRun] | None = None
    ) -> ResidencyEvent:
        self.seq += 1
        return ResidencyEvent(
            node=self.name,
            incarnation=self.incarnation,
            root=self.root,
            seq=self.seq,
            stored=stored or [],
            removed=removed or [],
        )

    async def send(self, *events: ResidencyEvent) -> None:
        for event in events:
            await self._bus.publish(subjects.index_events(self.name), event)
        await self._bus.flush()

    async def _inventory(self, request: InventoryRequest) -> InventoryReply:
        self.inventories += 1
        return self.page(request.cursor)

    async def _replicate(self, request: ReplicateRequest) -> ReplicateReply:
        self.replications.append(request)
        num_blocks = len(request.keys) // KEY_BYTES
        await self.send(self.store_event(request.keys, 0, num_blocks))
        return ReplicateReply(num_blocks=num_blocks, moved_bytes=num_blocks << 20)

    async def report(self) -> None:
        """Say that the pool is there, with room."""
        await self._bus.publish(
            subjects.report("transfer", self.name),
            NodeReport(
                id=self.name,
                incarnation=self.incarnation,
                state="ready",
                root=self.root,
                block_bytes=1 << 20,
                slots_total=1_000,
                slots_free=1_000,
            ),
        )
        await self._bus.flush()

    def page(self, cursor: int) -> InventoryReply:
        """Part of what it holds now: the cursor counts places, whether they are filled or not."""
        places = [(chain, at) for chain in self.chains for at in range(0, len(chain) // 16, PLACE)]
        end = cursor + PAGE_PLACES
        runs = [
            run
            for chain, at in places[cursor:end]
            for run in _runs(chain, at, min(at + PLACE, self.depths.get(chain, 0)))
        ]
        return InventoryReply(
            incarnation=self.incarnation,
            root=self.root,
            seq=self.seq,
            stored=runs,
            next_cursor=end if end < len(places) else None,
        )


def _key(chain: bytes, index: int) -> bytes:
    return chain[index * KEY_BYTES : (index + 1) * KEY_BYTES]


def _runs(chain: bytes, start: int, end: int) -> list[StoredRun]:
    """One run a segment, as a pool sends them."""
    runs = []
    while start < end:
        stop = min(end, start - start % SEGMENT_BLOCKS + SEGMENT_BLOCKS)
        runs.append(
            StoredRun(
                start=start,
                head=_key(chain, start - start % SEGMENT_BLOCKS),
                parent=_key(chain, start - 1) if start else b"",
                keys=chain[start * KEY_BYTES : stop * KEY_BYTES],
            )
        )
        start = stop
    return runs
