"""The fake keeps the contract of transports, so what is tested with it holds for real ones."""

import numpy as np
import numpy.typing as npt
import pytest

from shared.transport.base import Peer
from shared.transport.fake import FakePeer, FakeTransport
from tests.contracts.transport_contract import BLOCK_BYTES, NUM_SLOTS, TransportContract


class FakeBench:
    def __init__(self) -> None:
        self.memory = np.zeros((NUM_SLOTS, BLOCK_BYTES), dtype=np.uint8)
        self.transport = FakeTransport(self.memory)
        self.peer = Peer("n", "1")
        self.fake = FakePeer(np.zeros((NUM_SLOTS, BLOCK_BYTES), dtype=np.uint8), [1] * NUM_SLOTS)
        self.transport.peers[("n", "1")] = self.fake

    def own(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.memory[slot]

    def theirs(self, slot: int) -> npt.NDArray[np.uint8]:
        return self.fake.blocks[slot]

    def generation(self, slot: int) -> int:
        return self.fake.generations[slot]

    def reuse(self, slot: int) -> None:
        self.fake.generations[slot] += 1

    def kill_peer(self) -> None:
        self.fake.is_alive = False

    def slow_down(self) -> None:
        self.fake.latency_s = 0.02


@pytest.fixture
def bench() -> FakeBench:
    return FakeBench()


class TestFakeTransport(TransportContract):
    pass
