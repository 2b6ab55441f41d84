"""Figures 8, 9 and 15 and overload: coupled baselines, pool sizes, the split of roles, refusals."""

from collections.abc import Callable
from dataclasses import replace

from scripts.charts.chart import Chart, Series, bars
from scripts.simulate import paper
from scripts.simulate.lab import GENERATED_WHY, TRACES, Lab, Report, Row
from shared.scheduling.admission import ADMISSION_RULES
from shared.scheduling.slo import Slo
from shared.simulator.hit_rate import measure
from shared.simulator.outcome import Outcome, mean
from shared.simulator.virtual_coupled import COUPLED_MODES
from shared.simulator.workload import WorkloadSettings, make_workload

NUM_NODES = 16
FIG15_SLO = Slo(ttft_s=10.0, tbt_s=0.1)
REJECTION_SEEDS = 5
REJECTION = WorkloadSettings(
    num_requests=1_000, requests_per_s=3.0, input_tokens=20_000.0, spread=0.1,
    output_tokens=3 * 340.0, output_spread=0.6, turn_share=0.0,
)  # fmt: skip
"""Prompts of about one length, for a full batch has room for short ones only: where lengths differ,
rules are compared by whom they refuse and not by how many."""
REJECTION_SLO = Slo(ttft_s=30.0, tbt_s=0.06)


def fig8(lab: Lab) -> Report:
    """Prefill seconds of the accelerators a request: 8 + 8 nodes, and 16 coupled instances."""
    report = Report()
    shown: dict[str, dict[str, float]] = {}
    why_chunked = "a step's attention over the batch; vLLM's own cost of small chunks is unknown"
    why_prefix = "own memory only, LRU, balanced by tokens; the paper's router is not published"
    whys = {"plain": "the fit", "prefix": why_prefix, "chunked": why_chunked}
    for trace in TRACES:
        requests, known = lab.trace(trace), paper.PREFILL_GPU_S[trace]
        runs: list[tuple[str, str, Outcome, str]] = [
            ("moonpool", "mooncake", lab.run(requests, trace, policy="moonpool"), "our policy"),
            (
                "global_cache_aware", "mooncake",
                lab.run(requests, trace, policy="global_cache_aware"), "Algorithm 1",
            ),
        ]  # fmt: skip
        for mode in COUPLED_MODES:
            outcome = lab.run_coupled(requests, mode, NUM_NODES)
            runs.append((f"coupled, {mode}", mode, outcome, whys[mode]))
        for label, key, outcome, why in runs:
            if trace == "toolagent":
                why = GENERATED_WHY
            report.rows.append(
                Row(f"{trace}, {label}", "prefill s", outcome.mean_compute_s, known[key], why)
            )
            shown.setdefault(label, {})[trace] = outcome.mean_compute_s
    report.charts.append(bars("Prefill seconds a request", "seconds", shown))
    return report


def fig9(lab: Lab) -> Report:
    """Share of prompt tokens that one LRU pool serves, by its size, in order of arrival."""
    report = Report()
    why = "public ids are of 512 tokens, the paper ran 256: fewer hits in all"
    series = []
    for trace in TRACES:
        requests = lab.trace(trace)
        figures = paper.HIT_BY_TOKENS[trace]
        tick = lab.start_run(trace, len(figures))
        points = []
        for size, known in figures.items():
            hit = measure(requests, "lru", size, "trace").hit
            tick()
            note = GENERATED_WHY if trace == "toolagent" else why
            report.rows.append(Row(f"{trace}, {size / 1e6:g} M", "hit", hit, known, note))
            points.append((size / 1e6, hit))
        series += [
            Series(trace, tuple(points)),
            Series(f"{trace}, paper", tuple((size / 1e6, hit) for size, hit in figures.items())),
        ]
    report.charts.append(
        Chart("Hit by pool size", "million tokens", "hit", tuple(series), is_x_log=True)
    )
    return report


def fig15(lab: Lab) -> Report:
    """16 nodes split between prefill and decode: who meets TTFT 10 s and TBT 100 ms; synthetic."""
    requests = lab.trace("synthetic")
    report = Report()
    shown: dict[str, list[tuple[float, float]]] = {"ours": [], "paper": []}
    why = "batch dependence of decode is not published; ours is bound by bandwidth and GEMM time"
    for (split, effective), ttft_s, tbt_ms in zip(
        paper.EFFECTIVE_BY_SPLIT.items(), paper.SPLIT_TTFT_S, paper.SPLIT_TBT_MS, strict=True
    ):
        prefills, decodes = (int(part) for part in split.rstrip("D").split("P"))
        outcome = lab.run(
            requests, split, policy="global_cache_aware", num_prefills=prefills,
            num_decodes=decodes,
        )  # fmt: skip
        ours = outcome.effective(FIG15_SLO)
        report.rows += [
            Row(split, "effective", ours, effective, why),
            Row(split, "mean TTFT s", outcome.mean_ttft_s, ttft_s),
            Row(split, "mean TBT ms", 1e3 * mean([one.tbt_s for one in outcome.served]), tbt_ms),
        ]
        shown["ours"].append((prefills, ours))
        shown["paper"].append((prefills, effective))
    series = tuple(Series(name, tuple(points)) for name, points in shown.items())
    report.charts.append(Chart("Within both targets", "prefill nodes of 16", "share", series))
    return report


def rejection(lab: Lab) -> Report:
    """Overload where decode is the bottleneck: 8P2D, answers three times as long, five seeds.

    20,000-token prompts, 3 a second; TTFT 30 s, TBT 60 ms.
    """
    report = Report()
    why = "another workload: the paper's is 23,000 requests on 8P8D"
    refused_by_rule: dict[str, float] = {}
    for rule in ADMISSION_RULES:
        outcomes = []
        for seed in range(REJECTION_SEEDS):
            requests = make_workload(replace(REJECTION, seed=seed))
            outcomes.append(
                lab.run(
                    requests, f"{rule} {seed}", policy="global_cache_aware", num_prefills=8,
                    num_decodes=2, admission=rule, slo=REJECTION_SLO, seed=seed,
                )
            )  # fmt: skip

        def averaged(
            value: Callable[[Outcome], float], outcomes: list[Outcome] = outcomes
        ) -> float:
            return mean([value(outcome) for outcome in outcomes])

        refused_by_rule[rule] = averaged(lambda outcome: outcome.num_refused)
        report.rows += [
            Row(rule, "refused", refused_by_rule[rule], float(paper.REFUSED[rule]), why),
            Row(rule, "wasted prefill s", averaged(lambda outcome: outcome.wasted_prefill_s)),
            Row(rule, "mean TTFT s", averaged(lambda outcome: outcome.mean_ttft_s)),
            Row(rule, "within targets", averaged(lambda o: o.effective(REJECTION_SLO))),
        ]
    report.charts.append(bars("Refused of 1,000", "requests", {"ours": refused_by_rule}))
    return report
