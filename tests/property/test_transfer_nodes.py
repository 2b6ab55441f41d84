"""Two nodes whose workers, peers and operators do anything in any order, over a transport that is
late, lossy, out of order or dead: what is readable is what was sealed, what is held stays, no slot
is lost, and none is used again while a transfer may still write it.
"""

import asyncio
import random

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from shared.kv.ids import Slot
from shared.messages.common import ErrorCode, FetchSource, RequestRef
from shared.messages.pool import (
    FetchBlocks,
    LeaseBlocks,
    Pull,
    PullItem,
    Release,
    Seal,
    SealBlock,
)
from shared.messages.transfer import LeaseRelease, LeaseRequest, PinRequest, ReplicateRequest
from shared.transport.base import Peer
from tests.support.pool_node import ROOT
from tests.support.transfer_model import Kept, Leased, Running, bytes_of, chain_of
from tests.support.two_pools import NUM_SLOTS, TwoPools

NAMES = st.sampled_from(["a", "b"])
WORKERS = st.sampled_from([0, 1])
HANDLES = st.sampled_from(["r1/0", "r2/0", "r3/1"])
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
TIMES = st.sampled_from([0.01, 0.3, 2.0, 9.0])
LONGEST_S = 200.0
"""More than any lease, pin or call here lasts."""


class TransferMachine(TwoPools):
    # --- what workers do -------------------------------------------------------------------------

    @rule(name=NAMES, number=WORKERS, handle=HANDLES, path=PATHS)
    def compute(self, name: str, number: int, handle: str, path: list[int]) -> None:
        keys = chain_of(path)
        blocks = self.written(name, number, handle, [bytes(key) for key in keys])
        if not blocks:
            return
        seal = Seal(
            handle=handle,
            start=0,
            chain=b"".join(keys),
            blocks=[
                SealBlock(slot=slot, generation=generation, valid_tokens=4, key=key)
                for (slot, generation), key in zip(blocks, keys, strict=True)
            ],
        )
        attached = self.attached[name, number]
        reply = self.run(attached.worker.ask("seal", seal))
        self.keep(attached, handle, keys, reply.blocks)

    @rule(name=NAMES, number=WORKERS, handle=HANDLES)
    def keep_private(self, name: str, number: int, handle: str) -> None:
        self.numbers += 1
        content = f"private {self.numbers}".encode()
        for slot, generation in self.written(name, number, handle, [content]):
            block = SealBlock(slot=slot, generation=generation, valid_tokens=4)
            attached = self.attached[name, number]
            self.run(attached.worker.ask("seal", Seal(handle=handle, start=0, blocks=[block])))
            kept = Kept(slot, generation, content)
            attached.kept.setdefault(handle, []).append(kept)

    @rule(name=NAMES, number=WORKERS, handle=HANDLES, path=PATHS)
    def lease(self, name: str, number: int, handle: str, path: list[int]) -> None:
        keys = chain_of(path)
        attached = self.attached[name, number]
        reply = self.run(
            attached.worker.ask("lease", LeaseBlocks(handle=handle, keys=b"".join(keys)))
        )
        self.keep(attached, handle, keys, reply.blocks)

    @rule(name=NAMES, number=WORKERS, handle=HANDLES, path=PATHS, seconds=TIMES)
    def fetch(self, name: str, number: int, handle: str, path: list[int], seconds: float) -> None:
        """It goes on while other things happen."""
        keys = chain_of(path)
        request = FetchBlocks(
            handle=handle,
            ref=RequestRef(request_id="r", gateway="g", gateway_incarnation="1"),
            keys=b"".join(keys),
            source=FetchSource(node=self.other(name).ref, num_blocks=len(keys)),
            remaining_ms=int(seconds * 1000),
        )
        attached = self.attached[name, number]
        task = attached.worker.start_on(self.loop, "fetch", request)
        attached.running.append(Running(task, handle, keys))

    @rule(
        name=NAMES,
        number=WORKERS,
        handle=HANDLES,
        seconds=TIMES,
        latency_s=st.sampled_from([0.0, 0.05, 5.0]),
        which=st.integers(0, NUM_SLOTS - 1),
    )
    def pull(
        self, name: str, number: int, handle: str, seconds: float, latency_s: float, which: int
    ) -> None:
        """From what a worker of the other node holds; it goes on while other things happen."""
        other = self.other(name).ref
        if not self.kept_at(other.id):
            self.keep_private(other.id, number, handle)
        there = self.kept_at(other.id)
        if not there:
            return
        source = there[which % len(there)]
        way = self.way(name)
        if way is not None:
            way.latency_s = latency_s
        for slot, _ in self.written(name, number, handle, [b"nothing yet"]):
            item = PullItem(
                peer_slot=source.slot,
                peer_generation=source.generation,
                slot=slot,
                valid_tokens=4,
                first_layer=0,
                end_layer=2,
            )
            request = Pull(
                handle=handle, node=other, items=[item], remaining_ms=int(seconds * 1000)
            )
            attached = self.attached[name, number]
            task = attached.worker.start_on(self.loop, "pull", request)
            attached.running.append(Running(task, handle, [], slot, source.content))

    @precondition(lambda self: self.pulling())
    @rule(which=st.integers(0, 3))
    def seal_what_is_still_pulled(self, which: int) -> None:
        pulling = self.pulling()
        name, number = pulling[which % len(pulling)]
        attached = self.attached[name, number]
        self.run(asyncio.sleep(0))
        for call in [call for call in attached.running if call.target is not None][:1]:
            assert call.target is not None
            generation = self.nodes[name].pool.blocks.generation(Slot(call.target))
            block = SealBlock(slot=call.target, generation=generation, valid_tokens=4)
            seal = Seal(handle=call.handle, start=0, blocks=[block])
            sealed = self.ask(attached.worker.ask("seal", seal), refused_with=ErrorCode.BAD_REQUEST)
            assert sealed is None, "a slot was sealed while a pull wrote it"

    @rule(name=NAMES, number=WORKERS, handle=HANDLES)
    def release(self, name: str, number: int, handle: str) -> None:
        """Stops the handle's calls; when it returns none of them moves anything any more."""
        attached = self.attached[name, number]
        attached.kept.pop(handle, None)
        attached.running = [each for each in attached.running if each.handle != handle]
        self.run(attached.worker.ask("release", Release(handle=handle)))

    @rule(name=NAMES, number=WORKERS)
    def worker_dies(self, name: str, number: int) -> None:
        """Its socket closes; the next one attaches while the old one's calls are being ended."""
        attached = self.attached[name, number]
        attached.kept, attached.running = {}, []
        self.tasks.start_contained(attached.worker.session.end(), name="end")
        self.attach(name, number)

    # --- what peers do ---------------------------------------------------------------------------

    @rule(name=NAMES, path=PATHS, ttl_s=TIMES)
    def lease_to_the_other(self, name: str, path: list[int], ttl_s: float) -> None:
        keys = chain_of(path)
        request = LeaseRequest(
            holder=self.other(name).ref,
            incarnation=self.nodes[name].ref.incarnation,
            root=ROOT,
            keys=b"".join(keys),
            ttl_ms=int(ttl_s * 1000),
        )
        reply = self.run(self.nodes[name].handlers.lease(request))
        blocks = [
            Kept(slot, generation, key)
            for slot, generation, key in zip(reply.slots, reply.generations, keys, strict=False)
        ]
        self.leases[name].append(Leased(reply.lease_id, self.loop.time() + ttl_s, blocks))

    @precondition(lambda self: any(self.leases.values()))
    @rule(name=NAMES)
    def release_a_lease(self, name: str) -> None:
        for lease in self.leases[name][:1]:
            self.leases[name].remove(lease)
            request = LeaseRelease(lease_id=lease.lease_id)
            self.run(self.nodes[name].handlers.release(request))

    @rule(
        name=NAMES,
        latency_s=st.sampled_from([0.0, 0.0, 0.05, 5.0]),
        late_s=st.sampled_from([0.0, 0.4, 3.0]),
        seed=st.none() | st.integers(0, 9),
        loses=st.none() | st.integers(0, 3),
        flips=st.none() | st.integers(0, 3),
    )
    def the_way_changes(
        self,
        name: str,
        latency_s: float,
        late_s: float,
        seed: int | None,
        loses: int | None,
        flips: int | None,
    ) -> None:
        way = self.way(name)
        if way is None:
            return
        way.latency_s, way.late_s = latency_s, late_s
        way.order = None if seed is None else random.Random(seed)
        way.loses_slice = None if loses is None else way.slices_read + loses
        way.flips_slice = None if flips is None else way.slices_read + flips

    @rule(name=NAMES)
    def the_way_is_aborted(self, name: str) -> None:
        """The connection goes; both nodes live on, and it comes back."""
        other = self.other(name)
        if self.way(name) is not None:
            self.nodes[name].transport.abort(Peer(other.ref.id, other.ref.incarnation))
        self.nodes[name].can_reach(other)

    @rule(name=NAMES)
    def node_dies(self, name: str) -> None:
        dead, other = self.nodes.pop(name), self.nodes["b" if name == "a" else "a"]
        if (name, dead.ref.incarnation) in other.transport.peers:
            other.transport.die(Peer(name, dead.ref.incarnation))
        for number in (0, 1):
            attached = self.attached.pop((name, number))
            for call in attached.running:
                call.task.cancel()
        dead.stop_timers()
        self.begin(name)

    # --- what operators do -----------------------------------------------------------------------

    @rule(name=NAMES, path=PATHS, ttl_s=TIMES)
    def pin(self, name: str, path: list[int], ttl_s: float) -> None:
        keys = b"".join(chain_of(path))
        request = PinRequest(keys=keys, ttl_ms=int(ttl_s * 1000))
        pinning = self.nodes[name].pins.pin(request)
        reply = self.ask(pinning, refused_with=ErrorCode.OVERLOADED)
        if reply is not None:
            self.pins[name].append(reply.pin_id)

    @rule(name=NAMES, ttl_s=st.sampled_from([0.0, 0.5, 9.0]))
    def renew_or_end_a_pin(self, name: str, ttl_s: float) -> None:
        for pin_id in self.pins[name][:1]:
            request = PinRequest(pin_id=pin_id, keys=b"", ttl_ms=int(ttl_s * 1000))
            renewing = self.nodes[name].pins.pin(request)
            if self.ask(renewing, refused_with=ErrorCode.BAD_REQUEST) is None:
                self.pins[name].remove(pin_id)  # its time was over

    @rule(name=NAMES, path=PATHS)
    def drop(self, name: str, path: list[int]) -> None:
        self.nodes[name].pool.blocks.drop_blocks(chain_of(path)[-1])

    @rule(name=NAMES, count=st.integers(1, NUM_SLOTS))
    def evict(self, name: str, count: int) -> None:
        self.nodes[name].pool.blocks.evict(count)

    @rule(name=NAMES, path=PATHS, seconds=TIMES)
    def replicate(self, name: str, path: list[int], seconds: float) -> None:
        request = ReplicateRequest(
            keys=b"".join(chain_of(path)),
            source=self.other(name).ref,
            remaining_ms=int(seconds * 1000),
        )
        replicating = self.nodes[name].replicator.replicate(request)
        self.tasks.start_contained(replicating, name="replicate")

    @rule(seconds=TIMES)
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    # --- what always holds -----------------------------------------------------------------------

    @invariant()
    def books_are_right_and_no_slot_is_written_by_two(self) -> None:
        for node in self.nodes.values():
            node.check()
            counts = node.pool.blocks.counts
            states = counts.free, counts.writing, counts.private, counts.sealed, counts.doomed
            assert sum(states) == NUM_SLOTS
            assert node.pins.num_blocks <= node.pins.max_blocks

    @invariant()
    def what_is_readable_is_what_was_sealed(self) -> None:
        for node in self.nodes.values():
            runs, following = node.pool.blocks.inventory(0, NUM_SLOTS)
            assert following is None
            for key in (key for run in runs for key in run.keys):
                block = node.pool.blocks.readable(key)
                assert block is not None
                assert np.array_equal(node.pool.segment.block(block.slot), bytes_of(key))

    @invariant()
    def what_is_held_stays(self) -> None:
        for (name, _), attached in self.attached.items():
            for blocks in attached.kept.values():
                self.check_kept(self.nodes[name], blocks)
        for name, leases in self.leases.items():
            leases[:] = [each for each in leases if each.until_s > self.loop.time()]
            for lease in leases:
                self.check_kept(self.nodes[name], lease.blocks)

    def teardown(self) -> None:
        for attached in self.attached.values():
            self.tasks.start_contained(attached.worker.session.end(), name="end")
            attached.running = []
        self.loop.run_until_complete(asyncio.sleep(LONGEST_S))
        assert self.tasks.errors == []
        assert not asyncio.all_tasks(self.loop), "a call never ended"
        for node in self.nodes.values():
            node.check()
            counts = node.pool.blocks.counts
            assert (counts.writing, counts.private, counts.doomed, counts.held) == (0, 0, 0, 0)
            assert node.flow.bytes_in_flight == node.transport.num_running == 0
            node.pool.blocks.evict(NUM_SLOTS)
            assert node.pool.blocks.counts.free == NUM_SLOTS, "a slot was lost"
            node.stop_timers()
        self.virtual.__exit__(None, None, None)


TransferMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTransferNodes = TransferMachine.TestCase
