"""Which transport is used for a peer, when one fails, and when it is tried again."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from shared.transport.base import Peer, PeerLost, Slice, TcpAddress, WriteRefused
from shared.transport.fake import FakePeer, FakeTransport
from shared.transport.router import JUDGED_AFTER_S, Router

BLOCK_BYTES = 64
PART = Slice(0, 1, 0, 0, BLOCK_BYTES)
NODE = Peer("n", "1", tcp=TcpAddress("127.0.0.1", 1, b""))


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Set:
    own: np.ndarray = field(default_factory=lambda: np.zeros((2, BLOCK_BYTES), np.uint8))
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.fast = self.transport("fast", 1)
        self.slow = self.transport("slow", 2)
        self.router = Router([self.fast, self.slow], self.clock)

    def transport(self, name: str, content: int) -> FakeTransport:
        transport = FakeTransport(self.own, name)
        blocks = np.full((2, BLOCK_BYTES), content, dtype=np.uint8)
        transport.peers["n", "1"] = FakePeer(blocks, [1, 1])
        return transport

    async def used(self) -> str:
        return (await self.router.fetch(NODE, [PART], timeout_s=1)).transport


async def test_the_first_that_works_is_used() -> None:
    assert await Set().used() == "fast"


async def test_a_failed_one_is_left_for_a_time_that_grows_and_tried_again() -> None:
    around = Set()
    memory = around.fast.peers["n", "1"]
    memory.is_alive = False
    assert await around.used() == "slow"
    memory.is_alive = True
    assert await around.used() == "slow"
    around.clock.now_s += 0.6
    assert await around.used() == "fast"
    memory.is_alive = False
    assert await around.used() == "slow"
    around.clock.now_s += 0.6
    assert await around.used() == "slow"
    memory.is_alive = True
    around.clock.now_s += 0.6
    assert await around.used() == "slow", "the second failure in a row waits longer"
    around.clock.now_s += 0.6
    assert await around.used() == "fast"


async def test_a_death_in_the_middle_goes_on_over_the_next() -> None:
    around = Set()
    around.fast.peers["n", "1"].dies_after_slices = 1
    moved = await around.router.fetch(NODE, [PART, Slice(1, 1, 1, 0, BLOCK_BYTES)], timeout_s=1)
    assert (moved.num_slices, moved.transport) == (2, "slow")
    assert (around.own == 2).all()


async def test_one_is_tried_even_when_all_have_just_failed() -> None:
    around = Set()
    for transport in (around.fast, around.slow):
        transport.peers["n", "1"].is_alive = False
    with pytest.raises(PeerLost):
        await around.used()
    around.fast.peers["n", "1"].is_alive = True
    assert await around.used() == "fast"


async def test_a_peer_is_left_for_itself_alone() -> None:
    around = Set()
    around.fast.peers["m", "1"] = around.fast.peers["n", "1"]
    around.fast.peers["n", "1"] = FakePeer(
        np.zeros((1, BLOCK_BYTES), np.uint8), [1], is_alive=False
    )
    assert await around.used() == "slow"
    moved = await around.router.fetch(Peer("m", "1"), [PART], timeout_s=1)
    assert moved.transport == "fast"


async def test_what_the_peer_does_not_offer_is_not_tried() -> None:
    around = Set()
    tcp = around.transport("tcp", 7)
    router = Router([tcp, around.slow], around.clock)
    assert (await router.fetch(NODE, [PART], timeout_s=1)).transport == "tcp"
    assert (await router.fetch(Peer("n", "1"), [PART], timeout_s=1)).transport == "slow"
    with pytest.raises(PeerLost, match="offers none of what this node has: tcp"):
        await Router([tcp], around.clock).fetch(Peer("n", "1"), [PART], timeout_s=1)


async def test_a_write_goes_to_the_first_that_may() -> None:
    class ReadOnly(FakeTransport):
        async def write(self, peer: Peer, slices: object, *, timeout_s: float) -> int:
            raise WriteRefused("only the owner writes")

    around = Set()
    first = ReadOnly(around.own, "first")
    first.peers = around.fast.peers
    router = Router([first, around.slow], around.clock)
    around.own[:] = 9
    assert await router.write(NODE, [PART], timeout_s=1) == 1
    assert (around.slow.peers["n", "1"].blocks[0] == 9).all()
    assert (await router.fetch(NODE, [PART], timeout_s=1)).transport == "first"
    with pytest.raises(WriteRefused):
        await Router([first]).write(NODE, [PART], timeout_s=1)


async def test_the_time_is_shared_by_all_tries() -> None:
    around = Set()
    around.slow.peers["n", "1"].latency_s = 10.0
    around.fast.peers["n", "1"].is_alive = False
    with pytest.raises(TimeoutError):
        await around.router.fetch(NODE, [PART], timeout_s=0.05)


async def test_one_that_hangs_is_left_as_one_that_fails() -> None:
    around = Set()
    memory = around.fast.peers["n", "1"]
    memory.loses_slice = 0
    with pytest.raises(TimeoutError):
        await around.router.fetch(NODE, [PART], timeout_s=JUDGED_AFTER_S)
    assert await around.used() == "slow"
    memory.loses_slice = None
    around.clock.now_s += 0.6
    assert await around.used() == "fast"


async def test_a_call_without_time_judges_nobody() -> None:
    around = Set()
    memory = around.fast.peers["n", "1"]
    memory.latency_s = 10.0
    with pytest.raises(TimeoutError):
        await around.router.fetch(NODE, [PART], timeout_s=JUDGED_AFTER_S / 10)
    memory.latency_s = 0.0
    assert await around.used() == "fast"


async def test_losses_are_told_with_the_transport() -> None:
    around = Set()
    told: list[str] = []
    around.router.on_peer_lost = lambda peer, reason: told.append(f"{peer.node} {reason}")
    around.slow.die(NODE)
    assert told == ["n slow: died"]
