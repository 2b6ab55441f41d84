"""Put and get of whole blocks through transfer services and index, beside Mooncake's store.

put: allocate, copy in, seal (with its checksum), published. get: match at the index, lease, fetch
to the other node, verified. Two nodes of one host: over shared memory, and over TCP alone.
"""

import asyncio
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.bars import Bar, judged, not_measured
from scripts.bench.interleave import VariantError
from scripts.bench.mooncake_store import MooncakeStore
from scripts.bench.transfer_nodes import Place, start_nodes

MIB = 1 << 20
SMALL_BYTES = 4096
TCP_GOAL, LOCAL_GOAL = 1.3, 3.0
OnRun = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    folder: Path
    cache_dir: Path
    block_mib: int = 16
    num_blocks: int = 12
    """Of a batch."""
    num_small: int = 300
    rounds: int = 5


@dataclass(slots=True)
class Rounds:
    """Seconds of each put and get of a batch, and CPU seconds of all processes."""

    name: str
    num_bytes: int
    put_s: list[float] = field(default_factory=list)
    get_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    failure: str = ""

    def add(self, put_s: float, get_s: float, cpu_s: float) -> None:
        self.put_s.append(put_s)
        self.get_s.append(get_s)
        self.cpu_s.append(cpu_s)

    @property
    def gb_per_s(self) -> float:
        """Of put and get together: bytes in plus bytes out."""
        both = [put + get for put, get in zip(self.put_s, self.get_s, strict=True)]
        return 2 * self.num_bytes / statistics.median(both) / 1e9

    def as_json(self) -> dict[str, Any]:
        if self.failure or not self.put_s:
            return {"name": self.name, "failure": self.failure}
        return {
            "name": self.name,
            "put_gb_per_s": self.num_bytes / statistics.median(self.put_s) / 1e9,
            "get_gb_per_s": self.num_bytes / statistics.median(self.get_s) / 1e9,
            "put_and_get_gb_per_s": self.gb_per_s,
            "cpu_s_per_gb": statistics.median(self.cpu_s) / (2 * self.num_bytes) * 1e9,
        }


@dataclass(slots=True)
class StoreReport:
    bars: list[Bar] = field(default_factory=list)
    rounds: list[Rounds] = field(default_factory=list)
    small_us: dict[str, float] = field(default_factory=dict)
    """Median of one small block through the whole path, by transport."""

    def as_json(self) -> dict[str, Any]:
        return {"batches": [each.as_json() for each in self.rounds], "small_us": self.small_us}

    def rows(self) -> list[tuple[str, str]]:
        rows = []
        for each in self.rounds:
            found = each.as_json()
            if each.failure:
                rows.append((each.name, each.failure))
                continue
            rows += [
                (f"{each.name}, {part}", f"{found[f'{part}_gb_per_s']:.2f} GB/s")
                for part in ("put", "get", "put_and_get")
            ]
            rows.append((f"{each.name}, CPU", f"{found['cpu_s_per_gb']:.3f} s/GB"))
        rows += [
            (f"4 KiB, lease and fetch, {name}", f"{us:.0f} µs")
            for name, us in self.small_us.items()
        ]
        return rows


async def measure_store(options: StoreOptions, on_run: OnRun) -> StoreReport:
    report = StoreReport()
    on_run("starting Mooncake's store")
    place = Place(options.folder, options.cache_dir)
    block_bytes, count = options.block_mib * MIB, options.num_blocks
    theirs = Rounds("Mooncake tcp", count * block_bytes)
    ours: dict[str, Rounds] = {}
    with ExitStack() as stack:
        mooncake = await asyncio.to_thread(
            MooncakeStore, options.cache_dir, options.block_mib, count, stack
        )
        for transport in ("local", "tcp"):
            rounds = ours[transport] = Rounds(f"moonpool {transport}", theirs.num_bytes)
            async with start_nodes(place, transport, block_bytes, count) as nodes:
                for number in range(options.rounds + 2):  # the first two warm up all slots
                    on_run(f"put and get over {transport}, round {number}")
                    found = await nodes.put_get()
                    other = await asyncio.to_thread(_try, mooncake, theirs)
                    if number > 1:
                        rounds.add(*found)
                        if other is not None:
                            theirs.add(*other)
            async with start_nodes(place, transport, SMALL_BYTES, 4 * options.num_small) as nodes:
                on_run(f"blocks of 4 KiB over {transport}")
                report.small_us[transport] = await nodes.small_us(options.num_small)
    report.rounds = [*ours.values(), theirs]
    for transport, goal in (("tcp", TCP_GOAL), ("local", LOCAL_GOAL)):
        report.bars.append(_bar(ours[transport], theirs, transport, goal))
    return report


def _try(mooncake: MooncakeStore, rounds: Rounds) -> tuple[float, float, float] | None:
    try:
        return mooncake.put_get()
    except VariantError as error:
        rounds.failure = str(error)
        return None


def _bar(ours: Rounds, theirs: Rounds, transport: str, goal: float) -> Bar:
    name = f"put + get, {transport} / Mooncake store"
    if theirs.failure or not theirs.put_s:
        return not_measured(name, ">=", goal, "x", why=theirs.failure)
    note = f"{ours.gb_per_s:.2f} and {theirs.gb_per_s:.2f} GB/s"
    return judged(name, ours.gb_per_s / theirs.gb_per_s, ">=", goal, "x", note=note)
