"""NATS or the index is away: a node goes on serving its workers, and catches up afterwards."""

import asyncio
from pathlib import Path

import msgpack
import pytest

from shared.messages import subjects
from shared.messages.index import (
    InventoryReply,
    InventoryRequest,
    NodeLeaseReply,
    RegisterNode,
    RenewNode,
    ResidencyEvent,
)
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from tests.support.deadline import until
from tests.support.servers import TestServer
from tests.support.transfer_node import TransferHost, make_chain, store_chain

pytestmark = pytest.mark.fault


class FakeIndex:
    """Answers register and renew as the test says."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.epoch = "e1"
        self.is_current = True
        self.registered: list[RegisterNode] = []
        self.renewed: list[RenewNode] = []
        self.events: list[ResidencyEvent] = []

    async def start(self, node: str) -> None:
        client = self._bus.client
        await client.subscribe(subjects.INDEX_REGISTER_NODE, cb=self._on_register)
        await client.subscribe(subjects.INDEX_RENEW_NODE, cb=self._on_renew)
        await self._bus.subscribe(subjects.index_events(node), ResidencyEvent, self.events.append)
        await self._bus.flush()

    async def _on_register(self, message) -> None:  # type: ignore[no-untyped-def]
        self.registered.append(RegisterNode.model_validate(_unpacked(message.data)))
        await self._answer(message)

    async def _on_renew(self, message) -> None:  # type: ignore[no-untyped-def]
        self.renewed.append(RenewNode.model_validate(_unpacked(message.data)))
        await self._answer(message)

    async def _answer(self, message) -> None:  # type: ignore[no-untyped-def]
        reply = NodeLeaseReply(is_current=self.is_current, number=1, index_epoch=self.epoch)
        await message.respond(reply.model_dump_json().encode())


def _unpacked(data: bytes) -> object:
    return msgpack.unpackb(data)


async def test_a_node_serves_while_nats_is_away_and_tells_the_truth_afterwards(
    own_nats: TestServer, tmp_path: Path
) -> None:
    with TransferHost(own_nats.url, tmp_path) as host:
        transfer = host.start("a")
        pool = await host.attach(transfer)
        await store_chain(pool, "r1", make_chain(5, seed=1))
        own_nats.stop()
        chain = make_chain(7, seed=2)
        await store_chain(pool, "r2", chain)
        assert len((await pool.lease("r3", chain)).slots) == 7
        own_nats.start()
        bus = await Bus.connect(own_nats.url, name="test")

        async def inventory() -> InventoryReply | None:
            try:
                return await bus.request(
                    subjects.transfer(transfer.node, "inventory"),
                    InventoryRequest(),
                    InventoryReply,
                    timeout_s=1,
                )
            except ServiceError:
                return None

        page = await until(inventory, timeout_s=10, what="inventory after the reconnect")
        assert sum(len(run.keys) // 16 for run in page.stored) == 12
        assert page.seq == 2
        pool.close()
        await bus.close()
        await asyncio.to_thread(transfer.end)


async def test_a_node_registers_renews_and_registers_again_with_a_new_index(
    own_nats: TestServer, tmp_path: Path
) -> None:
    bus = await Bus.connect(own_nats.url, name="index")
    index = FakeIndex(bus)
    with TransferHost(own_nats.url, tmp_path) as host:
        transfer = host.start("a")
        pool = await host.attach(transfer)
        await index.start(transfer.node)
        await until(lambda: index.registered, what="registered once the index is there")
        await store_chain(pool, "r", make_chain(3, seed=3))
        await until(
            lambda: index.renewed and index.renewed[-1].seq == 1, what="renewed with the sequence"
        )
        assert [event.seq for event in index.events] == [1]
        assert len(index.registered) == 1
        index.epoch = "e2"
        await until(lambda: len(index.registered) == 2, what="registered anew")
        assert index.registered[1].incarnation == pool.node.incarnation
        pool.close()
    await bus.close()


async def test_a_node_whose_name_was_taken_ends_with_a_clear_message(
    own_nats: TestServer, tmp_path: Path
) -> None:
    bus = await Bus.connect(own_nats.url, name="index")
    index = FakeIndex(bus)
    with TransferHost(own_nats.url, tmp_path) as host:
        transfer = host.start("a")
        await index.start(transfer.node)
        pool = await host.attach(transfer)
        await until(lambda: index.renewed, what="renewed")
        index.is_current = False
        assert await asyncio.to_thread(transfer.wait, 10) == 1
        assert "give each transfer its own MOONPOOL_INSTANCE_ID" in transfer.log
        assert host.folder.names() == []
        async with asyncio.timeout(5):
            await pool.lost.wait()
        pool.close()
    await bus.close()
