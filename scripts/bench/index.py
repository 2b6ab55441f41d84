"""The bars of the index: what is measured against what. Measuring itself is in the processes."""

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.bars import Bar, judged, not_measured
from scripts.bench.fleet import ROOT
from scripts.bench.interleave import (
    MIN_ROUNDS,
    Series,
    VariantError,
    paired_ratio,
    run_interleaved,
)
from scripts.bench.peer_process import PeerProcess, clean_env
from scripts.bench.peers import environment
from shared.messages import subjects

HERE = Path(__file__).parent
OURS, PEER = "moonpool", "dynamo"
CHAIN_BLOCKS = 500
KINDS = ("full", "half", "miss")
LONG_TIMEOUT_S = 900.0
BYTES_GOAL, LOAD_GOAL, GROWTH_GOAL = 64.0, 200e3, 2.0
P50_GOAL_MS, RATE_GOAL = 1.0, 5_000.0
IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class IndexOptions:
    cache_dir: Path
    is_quick: bool = False
    rounds: int | None = None

    @property
    def num_rounds(self) -> int:
        return self.rounds or (2 if self.is_quick else MIN_ROUNDS)

    def blocks(self, count: int) -> int:
        return count // 10 if self.is_quick else count


@dataclass(slots=True)
class IndexBench:
    options: IndexOptions
    on_run: Callable[[str], None] = lambda _what: None
    series: dict[str, Series] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def worker(self, module: str, **settings: Any) -> PeerProcess:
        return PeerProcess(
            module,
            Path(sys.executable),
            HERE / f"{module}.py",
            settings,
            env=clean_env(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
            log_path=self._log(module),
            load_timeout_s=LONG_TIMEOUT_S,
        )

    def peer(self, **settings: Any) -> PeerProcess:
        """Raises VariantError when it is not set up."""
        env = environment(PEER, self.options.cache_dir)
        if not env.is_ready or env.peer.module is None:
            raise VariantError(env.why_absent)
        return PeerProcess(
            PEER,
            env.python,
            env.peer.module,
            settings,
            env=clean_env(),
            log_path=self._log(PEER),
            load_timeout_s=LONG_TIMEOUT_S,
        )

    def _log(self, name: str) -> Path:
        return self.options.cache_dir / "bench" / f"index-{name}.log"


def mirror_bars(bench: IndexBench) -> list[Bar]:
    """Matches, events and memory in one process, beside Dynamo's radix tree."""
    bars = []
    for num_nodes in (64, 1_000):
        settings = {
            "num_blocks": bench.options.blocks(1_000_000),
            "chain_blocks": CHAIN_BLOCKS,
            "num_nodes": num_nodes,
            "seed": 1,
        }
        bench.on_run(f"storing at {num_nodes} nodes")
        with bench.worker("index_worker", **settings) as own:
            try:
                peer = bench.peer(**settings)
            except VariantError as error:
                bars += _mirror_bars(bench, num_nodes, own, None, str(error))
                continue
            with peer:
                bars += _mirror_bars(bench, num_nodes, own, peer, "")
    return bars


def _mirror_bars(
    bench: IndexBench, num_nodes: int, own: PeerProcess, peer: PeerProcess | None, why: str
) -> list[Bar]:
    def ask(process: PeerProcess | None, operation: str, **arguments: Any) -> float:
        if process is None:
            raise VariantError(why)
        return float(process.call(operation, **arguments))

    variants: dict[str, Callable[[], float]] = {}
    for name, process in ((OURS, own), (PEER, peer)):
        for kind in KINDS:
            variants[f"{name} {kind}"] = lambda p=process, k=kind: ask(p, "match", kind=k)  # type: ignore[misc]
        variants[f"{name} events"] = lambda p=process: ask(p, "events", count=200)  # type: ignore[misc]
    found = run_interleaved(
        variants,
        rounds=bench.options.num_rounds,
        on_run=lambda name, turn: bench.on_run(f"{num_nodes} nodes: {name}, round {turn + 1}"),
    )
    bench.series |= {f"{num_nodes} nodes: {name}": one for name, one in found.items()}
    bars = []
    for kind in (*KINDS, "events"):
        ours, theirs = found[f"{OURS} {kind}"], found[f"{PEER} {kind}"]
        is_events = kind == "events"
        what = "events, blocks/s" if is_events else f"match {kind}"
        goal = 0.5 if is_events else 1.0
        name = f"{num_nodes} nodes: {what} / Dynamo"
        if theirs.failure:
            bars.append(not_measured(name, ">=", goal, "x", why=theirs.failure))
            continue
        note = _note(ours, theirs, 1e-6 if is_events else 1.0)
        bars.append(judged(name, paired_ratio(theirs, ours), ">=", goal, "x", note=note))
    own_bytes = own.description["bytes_per_block"]
    name = f"{num_nodes} nodes: memory / Dynamo"
    if peer is None:
        bars.append(not_measured(name, "<=", 1.0, "x", why=why))
    else:
        theirs_bytes = peer.description["bytes_per_block"]
        note = f"{own_bytes:.0f} B a block, the other {theirs_bytes:.0f}"
        bars.append(judged(name, own_bytes / theirs_bytes, "<=", 1.0, "x", note=note))
    return bars


def _note(ours: Series, theirs: Series, scale: float) -> str:
    mine, other = scale / ours.median, scale / theirs.median
    unit = "M/s" if scale < 1 else "/s"
    return f"{mine:,.4g} {unit}, the other {other:,.4g}"


def bus_bars(bench: IndexBench) -> list[Bar]:
    """A cache-index process through NATS, beside a bare responder."""
    bench.on_run("filling a cache-index")
    with bench.worker("index_bus_worker", num_blocks=bench.options.blocks(1_000_000)) as worker:
        subject, bare = subjects.INDEX_MATCH, subjects.BENCH_BARE
        count = 4_000 if bench.options.is_quick else 10_000
        variants: dict[str, Callable[[], float]] = {}
        for name, asked in (("match", subject), ("bare", bare)):
            variants[f"{name} p50"] = lambda s=asked: float(  # type: ignore[misc]
                worker.call("latency", subject=s, count=count // 10)
            )
            variants[f"{name} rate"] = lambda s=asked: float(  # type: ignore[misc]
                worker.call("rate", subject=s, count=count, in_flight=IN_FLIGHT)
            )
        found = run_interleaved(
            variants,
            rounds=bench.options.num_rounds,
            on_run=lambda name, turn: bench.on_run(f"NATS: {name}, round {turn + 1}"),
        )
        stale = sorted(worker.call("staleness", count=300))
    bench.series |= {f"NATS: {name}": one for name, one in found.items()}
    p50_ms, bare_ms = found["match p50"].median * 1e3, found["bare p50"].median * 1e3
    rate, ceiling = found["match rate"].median, found["bare rate"].median
    goal = min(RATE_GOAL, ceiling)
    return [
        judged(
            "NATS: match p50, 1 in flight", p50_ms, "<=", P50_GOAL_MS, "ms",
            note=f"a bare responder {bare_ms:.3g} ms",
        ),
        judged(
            f"NATS: matches, {IN_FLIGHT} in flight", rate, ">=", round(goal), "/s",
            note=f"a bare responder {ceiling:,.0f}/s",
        ),
        judged(
            "event to match, p50", statistics.median(stale) * 1e3, "<=", 5.0, "ms",
            note=f"p99 {stale[int(len(stale) * 0.99)] * 1e3:.3g} ms",
        ),
    ]  # fmt: skip


def redis_bars(bench: IndexBench) -> list[Bar]:
    """Bytes of Redis for a block on two nodes, by INFO."""
    bars = []
    num_blocks = bench.options.blocks(1_000_000)
    with bench.worker("index_store_worker") as worker:
        for kind, masters, shape in (
            ("valkey", 1, "long"),
            ("valkey", 1, "branching"),
            ("valkey", 3, "long"),
            ("redis", 1, "long"),
            ("redis", 1, "branching"),
            ("redis", 3, "long"),
        ):
            place = f"{kind}{' cluster of 3' if masters > 1 else ''}"
            name = f"{place}: bytes a block, {shape} chains"
            bench.on_run(name)
            count = num_blocks if shape == "long" else num_blocks // 5
            try:
                found = worker.call(
                    "stored_bytes", timeout_s=LONG_TIMEOUT_S,
                    kind=kind, masters=masters, num_blocks=count, shape=shape,
                )  # fmt: skip
            except VariantError as error:
                bars.append(not_measured(name, "<=", BYTES_GOAL, "B", why=str(error)))
                continue
            note = f"{count:,} blocks, {found['replicas_per_s'] / 1e3:.0f} k replicas/s written"
            bars.append(judged(name, found["bytes"], "<=", BYTES_GOAL, "B", note=note))
    return bars


def load_bars(bench: IndexBench) -> list[Bar]:
    """Loading all of Redis at a start, and how a match grows with the index."""
    small = bench.options.blocks(100_000)
    large = bench.options.blocks(10_000_000)
    with bench.worker("index_store_worker") as worker:
        runs = {}
        for num_blocks in (small, large):
            bench.on_run(f"writing and loading {num_blocks:,} blocks")
            runs[num_blocks] = worker.call(
                "load_all", timeout_s=LONG_TIMEOUT_S,
                kind="valkey", masters=1, num_blocks=num_blocks,
            )  # fmt: skip
    bench.details["load"] = {str(count): run for count, run in runs.items()}
    name = f"load of {large:,} blocks from Redis"
    note = f"{runs[large]['bytes']:.0f} B a block in memory"
    bars = [judged(name, runs[large]["blocks_per_s"], ">=", LOAD_GOAL, "blocks/s", note=note)]
    for kind in KINDS:
        before, after = runs[small][f"{kind}_s"], runs[large][f"{kind}_s"]
        name = f"match {kind}: {large:,} / {small:,} blocks"
        note = f"{before * 1e6:.1f} to {after * 1e6:.1f} us"
        bars.append(judged(name, after / before, "<", GROWTH_GOAL, "x", note=note))
    return bars


GROUPS: dict[str, Callable[[IndexBench], Iterable[Bar]]] = {
    "mirror": mirror_bars,
    "nats": bus_bars,
    "redis": redis_bars,
    "load": load_bars,
}


def run_groups(
    bench: IndexBench, names: Sequence[str], on_group: Callable[[str], None]
) -> tuple[list[Bar], list[str]]:
    """The bars, and the groups that the user broke off."""
    bars: list[Bar] = []
    unfinished = list(names)
    with suppress(KeyboardInterrupt):
        for name in names:
            on_group(name)
            bars.extend(GROUPS[name](bench))
            unfinished.remove(name)
    return bars, unfinished
