"""Two nodes of the transfer service and a model of what is held there, for state machines."""

from collections.abc import Coroutine
from typing import Any

import numpy as np
from hypothesis.stateful import RuleBasedStateMachine

from shared.kv.ids import BlockKey, Generation, Slot
from shared.messages.common import ErrorCode
from shared.messages.pool import Allocate, Blocks
from shared.runtime.errors import ServiceError
from tests.support.pool_node import LooseTasks, PoolNode
from tests.support.transfer_model import GEOMETRY, Attached, Kept, Leased, bytes_of
from tests.support.virtual_time import InlineExecutor, virtual_time

NUM_SLOTS = 8
CAP = 6


class TwoPools(RuleBasedStateMachine):
    """Nodes a and b in virtual time, and what is known of their workers, leases and pins."""

    def __init__(self) -> None:
        super().__init__()
        self.virtual = virtual_time()
        self.loop = self.virtual.__enter__()
        self.tasks = LooseTasks(self.loop)
        self.nodes: dict[str, PoolNode] = {}
        self.attached: dict[tuple[str, int], Attached] = {}
        self.leases: dict[str, list[Leased]] = {"a": [], "b": []}
        self.pins: dict[str, list[str]] = {"a": [], "b": []}
        self.numbers = 0
        for name in ("a", "b"):
            self.begin(name)

    # --- nodes and workers -----------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        result = self.loop.run_until_complete(work)
        self.collect()
        return result

    def ask(self, work: Coroutine[Any, Any, Any], *, refused_with: ErrorCode) -> Any:
        """The answer; None when it was refused in the one way that may be."""
        try:
            return self.run(work)
        except ServiceError as error:
            if error.code is not refused_with:
                raise
            return None

    def begin(self, name: str) -> None:
        node = PoolNode(name, self.nodes, GEOMETRY, NUM_SLOTS, InlineExecutor(), self.tasks)
        self.nodes[name] = node
        self.leases[name], self.pins[name] = [], []
        for other in self.nodes.values():
            if other is not node:
                node.can_reach(other)
                other.can_reach(node)
        for number in (0, 1):
            self.attach(name, number)

    def attach(self, name: str, number: int) -> None:
        worker = self.run(self.nodes[name].attach(f"w{number}", CAP))
        self.attached[name, number] = Attached(worker)

    def other(self, name: str) -> PoolNode:
        return self.nodes["b" if name == "a" else "a"]

    def way(self, name: str) -> Any:
        """From the node to the other one."""
        other = self.other(name).ref
        return self.nodes[name].transport.peers.get((other.id, other.incarnation))

    def collect(self) -> None:
        """Take the answers that are there."""
        for (name, _), attached in self.attached.items():
            for call in list(attached.running):
                if not call.task.done():
                    continue
                attached.running.remove(call)
                if call.task.cancelled():
                    continue
                error = call.task.exception()
                if error is not None:
                    assert isinstance(error, ServiceError), error
                elif call.target is None:
                    self.keep(attached, call.handle, call.keys, call.task.result().blocks)
                elif call.target not in self.nodes[name].transport.damaged:  # workers check it
                    found = self.nodes[name].pool.segment.block(call.target)
                    assert np.array_equal(found, bytes_of(call.content)), "a pull brought others"

    def kept_at(self, name: str) -> list[Kept]:
        """By all workers of the node."""
        return [
            kept
            for (each, _), attached in self.attached.items()
            if each == name
            for of_handle in attached.kept.values()
            for kept in of_handle
        ]

    def pulling(self) -> list[tuple[str, int]]:
        """Workers with a pull that has not been answered."""
        return [
            which
            for which, attached in self.attached.items()
            if any(call.target is not None for call in attached.running)
        ]

    def keep(self, attached: Attached, handle: str, keys: list[BlockKey], blocks: Blocks) -> None:
        kept = [
            Kept(slot, generation, key)
            for slot, generation, key in zip(blocks.slots, blocks.generations, keys, strict=False)
        ]
        attached.kept.setdefault(handle, []).extend(kept)

    def written(
        self, name: str, number: int, handle: str, contents: list[bytes]
    ) -> list[tuple[int, int]]:
        """New slots with these bytes; none when there is no room."""
        worker = self.attached[name, number].worker
        allocate = Allocate(handle=handle, num_slots=len(contents))
        given = self.ask(worker.ask("allocate", allocate), refused_with=ErrorCode.OVERLOADED)
        if given is None:
            return []
        for slot, content in zip(given.slots, contents, strict=True):
            self.nodes[name].pool.segment.block(slot)[:] = bytes_of(content)
        return list(zip(given.slots, given.generations, strict=True))

    def check_kept(self, node: PoolNode, blocks: list[Kept]) -> None:
        for block in blocks:
            assert node.pool.blocks.generation(Slot(block.slot)) == Generation(block.generation)
            found = node.pool.segment.block(block.slot)
            assert np.array_equal(found, bytes_of(block.content)), "a held block changed"
