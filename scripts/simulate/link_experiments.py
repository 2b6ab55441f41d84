"""Figures 13 and 14: what a link must carry to be worth it, and one prompt alone."""

from scripts.charts.chart import Chart, Series
from scripts.simulate import paper
from scripts.simulate.lab import Lab, Report, Row
from shared.simulator.outcome import Outcome, mean
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

K = 1024
NUM_NODES = 16
"""Of the paper's testbed; how many of them prefilled in Fig. 13 is not published."""


def fig13(lab: Lab) -> Report:
    """TTFT by link speed, synthetic trace, 16 prefill and 16 decode nodes; recomputing beside."""
    requests = lab.trace("synthetic")
    size = {"num_prefills": NUM_NODES, "num_decodes": NUM_NODES}
    report = Report()
    why = "its share of prefill nodes is not published; its 2.62 s is hardly more than the compute"
    plain = lab.run(requests, "recompute", policy="least_loaded", pool_tokens=0, **size)
    report.rows.append(
        Row("recompute", "mean TTFT s", plain.mean_ttft_s, paper.RECOMPUTE_TTFT_S, why)
    )
    why = "its 4.6 GB a request are a whole prompt: the hand-over to decode counts in it"
    points: dict[str, list[tuple[float, float]]] = {"recompute": []}
    for gbps, known in paper.TTFT_BY_GBPS_S.items():
        hardware = lab.base.hardware.with_line_rate(gbps)
        points["recompute"].append((gbps, plain.mean_ttft_s))
        for policy in ("global_cache_aware", "moonpool"):
            label = f"{gbps} Gbps, {policy}"
            outcome = lab.run(requests, label, policy=policy, hardware=hardware, **size)
            is_paper = policy == "global_cache_aware"
            whole_s = _with_handoff_s(outcome)
            report.rows += [
                Row(label, "mean TTFT s", outcome.mean_ttft_s),
                Row(label, "with hand-over s", whole_s, known if is_paper else None,
                    why if is_paper else ""),
            ]  # fmt: skip
            points.setdefault(f"{policy}, with hand-over", []).append((gbps, whole_s))
            points.setdefault(f"{policy}, TTFT", []).append((gbps, outcome.mean_ttft_s))
    points["paper"] = [(gbps, known) for gbps, known in paper.TTFT_BY_GBPS_S.items()]
    series = tuple(Series(name, tuple(found)) for name, found in points.items())
    report.charts.append(Chart("TTFT by link speed", "Gbps", "seconds", series, is_x_log=True))
    return report


def _with_handoff_s(outcome: Outcome) -> float:
    return mean([one.ttft_s + one.handoff_s for one in outcome.served])


def fig14(lab: Lab) -> Report:
    """One prompt on an idle node, nothing and 95 % of it cached."""
    report = Report()
    points: dict[str, list[tuple[float, float]]] = {}
    for share, figures in ((0, paper.PREFILL_BY_KTOKENS_S), (95, paper.PREFILL_95_BY_KTOKENS_S)):
        why = "the fit's error" if not share else "the engine's fixed cost and slow loads, unfitted"
        for ktokens, known in figures.items():
            blocks = ktokens * K // BLOCK_TOKENS
            ids = tuple(range(blocks))
            cached = blocks * share // 100
            requests = [TraceRequest(1_000.0, blocks * BLOCK_TOKENS, 1, ids)]
            if cached:
                requests.insert(0, TraceRequest(0.0, cached * BLOCK_TOKENS, 1, ids[:cached]))
            outcome = lab.run(requests, f"{ktokens}k", num_prefills=1, num_decodes=1)
            ttft_s = outcome.requests[-1].ttft_s
            report.rows.append(
                Row(f"{ktokens}k, {share} % cached", "prefill s", ttft_s, known, why)
            )
            points.setdefault(f"{share} % cached", []).append((ktokens, ttft_s))
            points.setdefault(f"{share} % cached, paper", []).append((ktokens, known))
    series = tuple(Series(name, tuple(found)) for name, found in points.items())
    report.charts.append(Chart("Prefill of one prompt", "thousand tokens", "seconds", series))
    return report
