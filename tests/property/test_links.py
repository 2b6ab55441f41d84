"""Spreading over links: bytes add up, the sick is left and comes back, data is right."""

import asyncio
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.transport.base import InvalidSlice, Peer, PeerLost, Slice, WriteRefused
from shared.transport.fake import FakePeer, FakeTransport
from shared.transport.linked import LinkedTransport
from shared.transport.links import PROBE_AFTER_S, LinkSet

PEER = Peer("n", "1")
MIB = 1 << 20


@settings(deadline=None)
@given(st.data())
def test_bytes_in_flight_always_add_up(data: st.DataObject) -> None:
    links = LinkSet(["a", "b"], ["c"])
    now_s, running = 0.0, list[tuple[str, int, float]]()
    for _ in range(data.draw(st.integers(1, 60))):
        now_s += data.draw(st.floats(0.0, 1.0))
        if running and data.draw(st.booleans()):
            name, size, started_s = running.pop(data.draw(st.integers(0, len(running) - 1)))
            ending = data.draw(st.sampled_from(["finished", "failed", "given_up"]))
            if ending == "finished":
                links.finished(name, size, started_s, now_s)
            elif ending == "failed":
                links.failed(name, size, now_s)
            else:
                links.given_up(name, size)
        else:
            size = data.draw(st.integers(1, 64 * MIB))
            chosen = links.choose(size, now_s)
            if chosen is None:
                assert not any(links.is_usable(name, now_s) for name in links.names)
                continue
            assert links.is_usable(chosen, now_s)
            links.started(chosen, size, now_s)
            running.append((chosen, size, now_s))
        for name in links.names:
            mine = [size for link, size, _ in running if link == name]
            assert links.in_flight_bytes(name) == sum(mine)
            assert links.bytes_per_s(name) > 0


@settings(deadline=None)
@given(st.lists(st.floats(0.2, 20.0), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_shares_follow_the_bandwidth(speeds: list[float], order: random.Random) -> None:
    names = [f"link{number}" for number in range(len(speeds))]
    links, now_s = LinkSet(names), 0.0
    free_s = dict.fromkeys(names, 0.0)
    moved = dict.fromkeys(names, 0)
    running: list[tuple[float, str, float]] = []
    for _ in range(400):
        while len(running) < 2 * len(names):
            name = links.choose(MIB, now_s)
            assert name is not None
            links.started(name, MIB, now_s)
            begin_s = max(now_s, free_s[name])
            free_s[name] = begin_s + MIB / (speeds[names.index(name)] * 1e9)
            running.append((free_s[name], name, now_s))
        running.sort()
        done_s, name, started_s = running.pop(0)
        now_s = done_s
        moved[name] += MIB
        links.finished(name, MIB, started_s, now_s)
    ideal_s = sum(moved.values()) / (sum(speeds) * 1e9)
    assert now_s <= 2.0 * ideal_s + 10 * MIB / (min(speeds) * 1e9)


def test_a_failed_link_is_left_probed_with_one_piece_and_used_again() -> None:
    links = LinkSet(["a", "b"])
    links.started("a", MIB, 0.0)
    links.failed("a", MIB, 0.0)
    for _ in range(5):
        assert links.choose(MIB, 0.1) == "b"
        links.started("b", MIB, 0.1)
    assert links.choose(MIB, 0.6) == "a"
    links.started("a", MIB, 0.6)
    assert links.choose(MIB, 0.6) == "b", "one piece at a time until it is proven"
    links.finished("a", MIB, 0.6, 0.601)
    assert links.choose(MIB, 0.7) == "a"


def test_a_slow_link_is_left_and_looked_at_again() -> None:
    links = LinkSet(["a", "b"])
    for name, seconds in (("a", 1.0), ("b", 0.001)):
        for _ in range(10):
            links.started(name, MIB, 0.0)
            links.finished(name, MIB, 0.0, seconds)
    assert links.choose(MIB, 1.0) == "b"
    links.started("b", MIB, PROBE_AFTER_S)
    assert links.choose(MIB, 1.0 + PROBE_AFTER_S) == "a"


def test_far_links_help_only_when_near_ones_are_full() -> None:
    links = LinkSet(["near"], ["far"])
    assert links.choose(MIB, 0.0) == "near"
    links.started("near", MIB, 0.0)
    links.started("near", MIB, 0.0)
    assert links.choose(MIB, 0.0) == "far"


@dataclass
class Linked:
    own: np.ndarray
    blocks: np.ndarray
    links: dict[str, FakeTransport]
    transport: LinkedTransport

    @classmethod
    def make(cls, num_links: int, num_slots: int = 12) -> "Linked":
        own = np.zeros((num_slots, MIB), dtype=np.uint8)
        blocks = np.arange(num_slots, dtype=np.uint8)[:, None] * np.ones(MIB, np.uint8) + 1
        links = {}
        for number in range(num_links):
            links[f"link{number}"] = FakeTransport(own, "fake")
            links[f"link{number}"].peers["n", "1"] = FakePeer(blocks, [1] * num_slots)
        return cls(own, blocks, links, LinkedTransport("linked", links))

    def slices(self) -> list[Slice]:
        return [Slice(slot, 1, slot, 0, MIB) for slot in range(len(self.own))] * 3

    def faults(self, name: str) -> FakePeer:
        return self.links[name].peers["n", "1"]


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.sampled_from(["fine", "slow", "dies", "dead", "hangs"]), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_as_long_as_one_link_works_everything_arrives(
    states: list[str], order: random.Random
) -> None:
    async def run() -> None:
        linked = Linked.make(len(states))
        for number, state in enumerate(states):
            faults = linked.faults(f"link{number}")
            faults.latency_s = {"slow": 0.005, "hangs": 0.0}.get(state, 0.0)
            faults.is_alive = state != "dead"
            faults.dies_after_slices = order.randrange(8) if state == "dies" else None
            faults.loses_slice = 2 if state == "hangs" else None
        is_possible = any(state in ("fine", "slow") for state in states)
        try:
            done = await linked.transport.read(PEER, linked.slices(), timeout_s=1)
        except PeerLost:
            assert not is_possible
            return
        except TimeoutError:
            assert "hangs" in states
            assert not is_possible
            return
        assert done == len(linked.slices())
        assert np.array_equal(linked.own, linked.blocks)

    asyncio.run(run())


async def test_a_reused_slot_ends_the_run_over_links_too() -> None:
    linked = Linked.make(3)
    for name in linked.links:
        linked.faults(name).generations[7] = 2
    assert await linked.transport.read(PEER, linked.slices(), timeout_s=3) == 7


async def test_a_cancelled_call_leaves_nothing_in_flight() -> None:
    linked = Linked.make(2)
    for name in linked.links:
        linked.faults(name).latency_s = 0.02
    reading = asyncio.ensure_future(linked.transport.read(PEER, linked.slices(), timeout_s=9))
    await asyncio.sleep(0.03)
    reading.cancel()
    await asyncio.wait([reading])
    links = linked.transport.link_set(PEER)
    assert [links.in_flight_bytes(name) for name in links.names] == [0, 0]
    assert [links.is_usable(name, 1e9) for name in links.names] == [True, True]


async def test_a_peer_is_told_lost_when_the_last_link_to_it_is() -> None:
    linked = Linked.make(3)
    told: list[str] = []
    linked.transport.on_peer_lost = lambda peer, reason: told.append(f"{peer.node} {reason}")
    linked.links["link2"].die(PEER)
    assert told == [], "nobody had reached it"
    await linked.transport.connect(PEER)
    await linked.transport.read(PEER, linked.slices(), timeout_s=9)
    linked.links["link0"].die(PEER)
    assert told == []
    assert await linked.transport.read(PEER, linked.slices(), timeout_s=9) == 36
    linked.links["link1"].die(PEER)
    assert told == ["n link1: died"]
    linked.links["link1"].on_peer_lost(PEER, "again")  # type: ignore[misc]
    assert len(told) == 1


async def test_a_refused_write_is_refused_by_the_links_together() -> None:
    class ReadOnly(FakeTransport):
        async def write(self, peer: Peer, slices: object, *, timeout_s: float) -> int:
            raise WriteRefused("only the owner writes")

    linked = Linked.make(2)
    links = {name: ReadOnly(linked.own) for name in linked.links}
    with pytest.raises(WriteRefused):
        await LinkedTransport("linked", links).write(PEER, linked.slices(), timeout_s=9)


async def test_a_wrong_slice_is_said_as_by_one_transport() -> None:
    linked = Linked.make(2)
    with pytest.raises(InvalidSlice):
        await linked.transport.read(PEER, [Slice(0, 1, 99, 0, MIB)], timeout_s=9)
