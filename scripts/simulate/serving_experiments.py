"""Figures 8, 9 and 15: coupled baselines, pool sizes, the split of roles."""

from scripts.charts.chart import Chart, Series, bars
from scripts.simulate import paper
from scripts.simulate.lab import GENERATED_WHY, TRACES, Lab, Report, Row
from shared.scheduling.slo import Slo
from shared.simulator.hit_rate import measure
from shared.simulator.outcome import Outcome, mean
from shared.simulator.virtual_coupled import COUPLED_MODES

NUM_NODES = 16
FIG15_SLO = Slo(ttft_s=10.0, tbt_s=0.1)


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
