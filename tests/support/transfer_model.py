"""What the tests of two nodes know: which bytes a block has, what is kept, which calls run."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.kv.ids import BlockKey
from shared.messages.transfer import KvGeometry
from tests.support.pool_node import Worker

GEOMETRY = KvGeometry(num_layers=2, block_tokens=4, token_bytes=8)
Bytes = npt.NDArray[np.uint8]


def chain_of(path: list[int]) -> list[BlockKey]:
    names = ("".join(map(str, path[: index + 1])) for index in range(len(path)))
    return [BlockKey(name.encode().rjust(16, b".")) for name in names]


def bytes_of(name: bytes) -> Bytes:
    generator = np.random.default_rng(int.from_bytes(name, "little"))
    return generator.integers(0, 256, GEOMETRY.block_bytes, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Kept:
    """A block that must stay as it is."""

    slot: int
    generation: int
    content: bytes
    """What `bytes_of` makes its bytes of."""


@dataclass(slots=True, eq=False)
class Running:
    """A call that has not answered yet."""

    task: asyncio.Task[Any]
    handle: str
    keys: list[BlockKey]
    """Of a fetch."""
    target: int | None = None
    """Of a pull: its own slot; and what must be in it after it."""
    content: bytes = b""


@dataclass(slots=True, eq=False)
class Attached:
    """What the test knows of a worker."""

    worker: Worker
    kept: dict[str, list[Kept]] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Leased:
    lease_id: str
    until_s: float
    blocks: list[Kept]
