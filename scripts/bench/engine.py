"""The engine's bars: what is measured against what. Measuring itself is in the processes."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.bench.bars import Bar, Relation, judged, not_measured
from scripts.bench.fleet import OURS, Fleet
from scripts.bench.interleave import MIN_ROUNDS, Series, paired_ratio, run_interleaved
from scripts.bench.work import decode_step_bytes, prefill_flops
from shared.checkpoint.model_config import ModelConfig

FP32, BF16 = "float32", "bfloat16"
SHORT = {FP32: "fp32", BF16: "bf16"}
LIMIT_ROWS = 2048
BYTES_PER_VALUE = 2
QUICK_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class EngineOptions:
    model: str
    threads: int
    cache_dir: Path
    is_quick: bool = False
    rounds: int | None = None

    @property
    def num_rounds(self) -> int:
        return self.rounds or (QUICK_ROUNDS if self.is_quick else MIN_ROUNDS)


Variants = dict[str, Callable[[], float]]
OnRun = Callable[[str], None]


@dataclass(slots=True)
class EngineBench:
    """What all groups of bars share: the processes, the sizes, and every value taken."""

    options: EngineOptions
    config: ModelConfig
    fleet: Fleet
    on_run: OnRun = lambda _what: None
    series: dict[str, Series] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return self.options.num_rounds

    def length(self, num_tokens: int) -> int:
        """Of a prompt; a quick run takes a quarter, and the context of the model is the limit."""
        wanted = num_tokens // 4 if self.options.is_quick else num_tokens
        return min(wanted, self.config.max_positions)

    def interleave(self, group: str, variants: Variants) -> Mapping[str, Series]:
        def on_run(name: str, number: int) -> None:
            self.on_run(f"{group}: {name}, round {number + 1} of {self.rounds}")

        found = run_interleaved(variants, rounds=self.rounds, on_run=on_run)
        self.series |= {f"{group}: {name}": series for name, series in found.items()}
        return found

    def timed(self, name: str, dtype: str, operation: str, **arguments: Any) -> Callable[[], float]:
        """A variant: one operation of one process."""
        return lambda: float(self.fleet.call(name, dtype, operation, **arguments))

    def faster(self, name: str, ours: Series, other: Series, goal: float) -> Bar:
        """The bar of how many times faster ours is, by rounds; series are seconds."""
        why = ours.failure or other.failure
        if why:
            return not_measured(name, ">=", goal, "x", why=why)
        note = f"{ours.median:.4g} s, the other {other.median:.4g} s"
        return judged(name, paired_ratio(other, ours), ">=", goal, "x", note=note)

    def share(
        self, name: str, work: float, seconds: Series, limit: Series, goal: float, *, note: str = ""
    ) -> Bar:
        """The bar of how much of the limit (work per second) is reached."""
        why = seconds.failure or limit.failure
        if why:
            return not_measured(name, ">=", goal, "share", why=why)
        pairs = zip(seconds.values, limit.values, strict=True)
        value = statistics.median(work / (taken * most) for taken, most in pairs)
        text = f"{work / seconds.median / 1e9:.4g} of {limit.median / 1e9:.4g} G/s"
        return judged(name, value, ">=", goal, "share", note=f"{text}{note}")

    def typical(
        self, name: str, series: Series, relation: Relation, goal: float, unit: str, note: str = ""
    ) -> Bar:
        """The bar of a median."""
        if series.failure:
            return not_measured(name, relation, goal, unit, why=series.failure)
        return judged(name, series.median, relation, goal, unit, note=note)


@dataclass(frozen=True, slots=True)
class PrefillGoals:
    num_tokens: int
    limit_shares: Mapping[str, float]
    """By dtype: the least share of the GEMM limit."""
    bf16_aim: float
    """Beyond the goal."""


PREFILL = PrefillGoals(2048, {FP32: 0.55, BF16: 0.22}, 0.3)
LONG_PREFILL = PrefillGoals(8192, {FP32: 0.45, BF16: 0.15}, 0.22)
HF_GOAL, LLAMACPP_GOAL, VLLM_GOAL = 1.05, 2.0, 1.0


def prefill_bars(bench: EngineBench) -> list[Bar]:
    """A prompt of 2,048 tokens against the matrix products' limit and against others."""
    return _prefill_bars(bench, PREFILL)


def long_prefill_bars(bench: EngineBench) -> list[Bar]:
    """The same with 8,192 tokens."""
    return _prefill_bars(bench, LONG_PREFILL)


def _prefill_bars(bench: EngineBench, goals: PrefillGoals) -> list[Bar]:
    num_tokens = bench.length(goals.num_tokens)
    found = bench.interleave(f"prefill {num_tokens}", _prefill_variants(bench, num_tokens))
    work = prefill_flops(bench.config, num_tokens)
    bars = []
    for dtype, goal in goals.limit_shares.items():
        kind = f"prefill {num_tokens} {SHORT[dtype]} exact"
        aim = f", aim {goals.bf16_aim}" if dtype == BF16 else ""
        ours, limit = found[f"{OURS} {SHORT[dtype]}"], found[f"limit {SHORT[dtype]}"]
        bars.append(bench.share(f"{kind} / GEMM limit", work, ours, limit, goal, note=aim))
        hf = found[f"hf {SHORT[dtype]}"]
        bars.append(bench.faster(f"{kind} / HF transformers", ours, hf, HF_GOAL))
    ours = found[f"{OURS} bf16"]
    kind = f"prefill {num_tokens} bf16 exact"
    return [
        *bars,
        bench.faster(f"{kind} / llama.cpp BF16", ours, found["llamacpp bf16"], LLAMACPP_GOAL),
        bench.faster(f"{kind} / vLLM CPU", ours, found["vllm bf16"], VLLM_GOAL),
    ]


def _prefill_variants(bench: EngineBench, num_tokens: int) -> Variants:
    variants: Variants = {}
    for dtype in (FP32, BF16):
        variants[f"limit {SHORT[dtype]}"] = bench.timed(OURS, dtype, "gemm_limit", rows=LIMIT_ROWS)
        for name in (OURS, "hf"):
            variants[f"{name} {SHORT[dtype]}"] = bench.timed(
                name, dtype, "prefill", num_tokens=num_tokens
            )
    for name in ("llamacpp", "vllm"):
        variants[f"{name} bf16"] = bench.timed(name, BF16, "prefill", num_tokens=num_tokens)
    return variants


DECODE_CONTEXT = 1024
DECODE_STEPS = 8
CONTIGUOUS_GOAL = 0.95
DECODE_GOALS: dict[int, dict[str, float]] = {
    1: {"llamacpp": 0.8},
    8: {"hf": 1.4, "vllm": 1.0},
    32: {"hf": 1.4},
}
TITLES = {"hf": "HF DynamicCache", "vllm": "vLLM CPU", "llamacpp": "llama.cpp BF16"}


def decode_bars(bench: EngineBench) -> Iterator[Bar]:
    """Steps at a context of 1,024, bf16, against contiguous KV, others, and the bandwidth."""
    context = bench.length(DECODE_CONTEXT)
    for batch, goals in DECODE_GOALS.items():
        if bench.options.is_quick and batch > 8:
            continue
        sizes = {"context": context, "batch": batch, "steps": DECODE_STEPS}
        variants = {
            "limit": bench.timed(OURS, BF16, "read_limit"),
            "paged": bench.timed(OURS, BF16, "decode", **sizes),
            "contiguous": bench.timed(OURS, BF16, "decode_contiguous", **sizes),
        } | {name: bench.timed(name, BF16, "decode", **sizes) for name in goals}
        found = bench.interleave(f"decode batch {batch}", variants)
        kind = f"decode {context} bf16 batch {batch}"
        ours = found["paged"]
        yield bench.faster(f"{kind} / contiguous", ours, found["contiguous"], CONTIGUOUS_GOAL)
        for name, goal in goals.items():
            yield bench.faster(f"{kind} / {TITLES[name]}", ours, found[name], goal)
        work = decode_step_bytes(
            bench.config, context=context, batch=batch, bytes_per_value=BYTES_PER_VALUE
        )
        bar = bench.share(f"{kind} / read bandwidth", work, ours, found["limit"], 0.0)
        # No goal is set for it.
        yield replace(bar, goal="reported")
