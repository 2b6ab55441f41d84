"""The engine's bars that need no peer: hooks, exactness, hits, self-test, memory, readiness."""

import asyncio
import os
import statistics
from collections.abc import Callable
from typing import Any

from scripts.bench.bars import Bar, judged, not_measured
from scripts.bench.engine import BF16, FP32, SHORT, EngineBench
from scripts.bench.engine_layers import least_s
from scripts.bench.fleet import OURS
from scripts.bench.hook_cost import median_with_error
from scripts.bench.interleave import Series, VariantError, paired_ratio
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.errors import LaunchError
from scripts.launcher.options import ClusterOptions
from shared.runtime.clock import monotonic_s
from shared.scheduling.cost_model import CostProfile, PrefillSample, fit_prefill

HOOK_TOKENS = 1024
HOOK_REPEATS = 6
HOOK_GOAL_PERCENT = 1.0
EXACT_TOKENS = 2048
EXACT_GOAL = 1.10


def hook_bars(bench: EngineBench) -> list[Bar]:
    """What it costs that every layer of every chunk is handed out: what the hooks and the loop they
    wake take themselves, or by how much a prefill with them is slower; not measured where that is
    beyond the goal by less than its error."""
    num_tokens = bench.length(HOOK_TOKENS)
    found: dict[str, list[dict[str, Any]]] = {SHORT[FP32]: [], SHORT[BF16]: []}

    def measured(dtype: str) -> Callable[[], float]:
        def measure() -> float:
            answers = [
                bench.fleet.call(OURS, dtype, "hooks", num_tokens=num_tokens, first_turn=number % 2)
                for number in range(HOOK_REPEATS)
            ]
            found[SHORT[dtype]] += answers
            return float(statistics.median(answer["own"] for answer in answers))

        return measure

    shares = bench.interleave("hooks", {SHORT[dtype]: measured(dtype) for dtype in (FP32, BF16)})
    return [
        _hook_bar(f"layer hooks' cost in a prefill of {num_tokens}, {kind}", found[kind], series)
        for kind, series in shares.items()
    ]


def _hook_bar(name: str, found: list[dict[str, Any]], series: Series) -> Bar:
    costs = [cost for one in found for cost in one["costs"] if cost is not None]
    if series.failure or not costs:
        why = series.failure or "the model has too few layers"
        return not_measured(name, "<=", HOOK_GOAL_PERCENT, "%", why=why)
    slower, error = (100 * value for value in median_with_error(costs))
    own = 100 * statistics.median(one["own"] for one in found)
    note = (
        f"the hooks and the loop they wake take {own:.2f} %; slower by {slower:.2f} % "
        f"+- {error:.2f} %, median of {len(costs)} chunks"
    )
    if own <= HOOK_GOAL_PERCENT < slower <= HOOK_GOAL_PERCENT + error:
        return not_measured(name, "<=", HOOK_GOAL_PERCENT, "%", why=note)
    return judged(name, max(own, slower), "<=", HOOK_GOAL_PERCENT, "%", note=note)


def exact_bars(bench: EngineBench) -> list[Bar]:
    """What the fixed grid and the pool cost against free chunking of the same chunk size."""
    num_tokens = bench.length(EXACT_TOKENS)
    variants = {
        f"{kind} {SHORT[dtype]}": bench.timed(OURS, dtype, operation, num_tokens=num_tokens)
        for dtype in (FP32, BF16)
        for kind, operation in (("exact", "prefill"), ("free", "prefill_free"))
    }
    found = bench.interleave(f"exact {num_tokens}", variants)
    bars = []
    for kind in (SHORT[FP32], SHORT[BF16]):
        exact, free = found[f"exact {kind}"], found[f"free {kind}"]
        name = f"exact / free chunking, prefill {num_tokens} {kind}, time"
        why = exact.failure or free.failure
        if why:
            bars.append(not_measured(name, "<=", EXACT_GOAL, "x", why=why))
            continue
        note = f"exact {exact.median:.4g} s, free {free.median:.4g} s"
        bars.append(judged(name, paired_ratio(exact, free), "<=", EXACT_GOAL, "x", note=note))
    return bars


HIT_CHUNKS = 8
HIT_REPEATS = 3
HIT_GOAL_PERCENT = 10.0


def hit_bars(bench: EngineBench) -> list[Bar]:
    """The cost model learns from cold prompts; what hits save is held against its word."""
    name = "what a hit saves, cost model's largest error"
    try:
        grid = int(bench.fleet.process(OURS, FP32).description["grid_tokens"])
    except VariantError as error:
        return [not_measured(name, "<=", HIT_GOAL_PERCENT, "%", why=str(error))]
    most = bench.length(HIT_CHUNKS * grid) // grid * grid
    steps = sorted({most * part // 4 // grid * grid for part in (1, 2, 3)} - {0, most})
    cold = [(length, 0) for length in (*steps, most)]
    hits = [(most, prefix) for prefix in steps]
    cases = cold + hits
    layers: dict[tuple[int, int], list[list[float]]] = {case: [] for case in cases}

    def measured() -> float:
        seconds = 0.0
        for number in range(HIT_REPEATS):
            # Nobody is always the first of a chunk, who finds the caches cold.
            turn = cases[number:] + cases[:number]
            answer = bench.fleet.call(OURS, FP32, "layer_seconds", cases=turn)
            for case, found in zip(turn, answer, strict=True):
                layers[case].append(found)
                seconds += sum(found)
        return seconds

    series = bench.interleave("hit", {"all": measured})["all"]
    if series.failure or not hits:
        why = series.failure or f"a context of {most} tokens has no room for a hit"
        return [not_measured(name, "<=", HIT_GOAL_PERCENT, "%", why=why)]

    def seconds(length: int, prefix: int) -> float:
        return least_s(layers[length, prefix])

    samples = [PrefillSample(length, prefix, seconds(length, prefix)) for length, prefix in cold]
    model = fit_prefill(samples, CostProfile().prefill)
    whole_s, worst, shown = seconds(most, 0), 0.0, []
    for length, prefix in hits:
        saved_s = whole_s - seconds(length, prefix)
        predicted_s = model.seconds(length, 0) - model.seconds(length, prefix)
        worst = max(worst, abs(saved_s / predicted_s - 1) if predicted_s > 0 else 1.0)
        shown.append(f"{prefix}: saved {saved_s:.3f} s, predicted {predicted_s:.3f} s")
    note = f"of {most} tokens fp32; {'; '.join(shown)}"
    return [judged(name, 100 * worst, "<=", HIT_GOAL_PERCENT, "%", note=note)]


SELF_TEST_GOAL_S = 2.0


def self_test_bars(bench: EngineBench) -> list[Bar]:
    """CPU seconds of one core, computed anew; a failed equality is never ok."""
    failed: dict[str, list[str]] = {}

    def measured(dtype: str) -> Callable[[], float]:
        def measure() -> float:
            answer = bench.fleet.call(OURS, dtype, "self_test", threads=1)
            failed[SHORT[dtype]] = list(answer["failed"])
            return float(answer["seconds"])

        return measure

    found = bench.interleave("self-test", {SHORT[dtype]: measured(dtype) for dtype in (FP32, BF16)})
    bars = []
    for kind, series in found.items():
        note = f"does not hold: {'; '.join(failed[kind])}" if failed.get(kind) else ""
        bar = bench.typical(
            f"self-test {kind}, one core", series, "<=", SELF_TEST_GOAL_S, "s", note
        )
        bars.append(Bar(bar.name, bar.value, bar.unit, bar.goal, bar.ok and not note, bar.note))
    return bars


# Prepacked linears keep a copy of the weights in every process.
PREPACKED = "onednn-prepacked"
SHARED_GOAL_PERCENT, PREPACKED_GOAL_PERCENT = 40.0, 75.0
MEMORY_TOKENS = 512


def memory_bars(bench: EngineBench) -> list[Bar]:
    """What a second process with the same model adds to the first one's memory."""
    # Other processes with the same model would take a share of the first one's pages.
    bench.fleet.close()
    name = "memory of a second worker, of the first's"
    bench.on_run("memory: one worker, then two")
    num_tokens = bench.length(MEMORY_TOKENS)
    try:
        with bench.fleet.start(OURS, FP32) as first:
            first.call("prefill", num_tokens=num_tokens)
            alone_bytes = int(first.call("pss_bytes"))
            mode = str(first.description["linear_mode"])
            with bench.fleet.start(OURS, FP32) as second:
                second.call("prefill", num_tokens=num_tokens)
                both_bytes = int(first.call("pss_bytes")) + int(second.call("pss_bytes"))
    except VariantError as error:
        return [not_measured(name, "<=", SHARED_GOAL_PERCENT, "%", why=str(error))]
    percent = 100 * (both_bytes - alone_bytes) / alone_bytes
    note = f"PSS {alone_bytes >> 20} MiB alone, {both_bytes >> 20} MiB both, {mode} linears"
    goal = PREPACKED_GOAL_PERCENT if mode == PREPACKED else SHARED_GOAL_PERCENT
    return [judged(name, percent, "<=", goal, "%", note=note)]


READY_GOAL_S = 6.0
WORKER = "prefill-1"


def ready_bars(bench: EngineBench) -> list[Bar]:
    """From the start of a worker's process until the cluster counts it as ready."""
    name = "prefill worker ready, warm"
    bench.fleet.close()
    series = bench.series["ready: prefill worker"] = Series()
    try:
        asyncio.run(_restart_often(bench, series))
    except LaunchError as error:
        series.failure = error.message
    note = _where_time_goes(bench)
    if series.values:
        note = f"{min(series.values):.2f}-{max(series.values):.2f} s; {note}"
    return [bench.typical(name, series, "<=", READY_GOAL_S, "s", note)]


async def _restart_often(bench: EngineBench, series: Series) -> None:
    options = ClusterOptions(
        model=bench.options.model, nodes=1, log_level="WARNING", drain_timeout_s=2.0
    )
    async with LocalCluster(options) as cluster:
        bench.on_run("ready: starting a cluster")
        await cluster.wait_ready()
        for number in range(bench.rounds):
            bench.on_run(f"ready: start {number + 1} of {bench.rounds}")
            await cluster.stop(WORKER)
            series.loads.append(os.getloadavg()[0])
            start_s = monotonic_s()
            await cluster.start_again(WORKER)
            await cluster.wait_ready()
            series.values.append(monotonic_s() - start_s)


def _where_time_goes(bench: EngineBench) -> str:
    """Of a bare process with the engine: what of it is the model."""
    bench.on_run("ready: where the time goes")
    start_s = monotonic_s()
    try:
        with bench.fleet.start(OURS, FP32) as process:
            total_s, load_s = monotonic_s() - start_s, float(process.description["load_s"])
    except VariantError as error:
        return str(error)
    return f"a bare engine process takes {total_s:.2f} s, {load_s:.2f} s of it for the model"
