"""Overload where decode is the bottleneck: refusals by rule and by what prefill can do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.charts.chart import Chart, Series, bars
from scripts.simulate import paper
from scripts.simulate.lab import Lab, Report, Row
from shared.scheduling.admission import ADMISSION_RULES, AdmissionRule
from shared.scheduling.slo import Slo
from shared.simulator.hardware import Hardware
from shared.simulator.outcome import Outcome, mean
from shared.simulator.workload import WorkloadSettings, make_workload

SEEDS = 5
NUM_PREFILLS, NUM_DECODES = 8, 2
REJECTION = WorkloadSettings(
    num_requests=1_000, requests_per_s=3.0, input_tokens=20_000.0, spread=0.1,
    output_tokens=3 * 340.0, output_spread=0.6, turn_share=0.0,
)  # fmt: skip
"""Prompts of about one length, for a full batch has room for short ones only: where lengths differ,
rules are compared by whom they refuse and not by how many."""
REJECTION_SLO = Slo(ttft_s=30.0, tbt_s=0.06)
OWN_HEADROOM = 3.055 / 1.24
"""Of this hardware; the experiment measures both roles alone."""
HEADROOMS = (1.0, 1.1, 1.2, 1.6, 2.0, 2.5)
"""Requests a second that prefill can do, over those that decode can take."""
ARRIVALS_PER_S = 2.48
"""Some twice what decode can take, as in the paper's replay at twice the rate."""
SATURATED_PER_S, SATURATED_REQUESTS = 6.0, 2_400
FILLED_S, BEFORE_END_S = 100.0, 60.0
"""By then the batches are full; and so long before the last arrival, what comes is decided in a
full cluster: afterwards whoever still waits for prefill finds batches that empty."""
WHY = "another workload: the paper's is 23,000 requests on 8P8D"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What each role could do if the other cost nothing."""

    prefill_per_s: float
    """Requests."""
    tokens_per_s: float

    @property
    def decode_per_s(self) -> float:
        """Requests."""
        return self.tokens_per_s / REJECTION.output_tokens


def rejection(lab: Lab) -> Report:
    """Overload where decode is the bottleneck: 8P2D, answers three times as long, five seeds.

    20,000-token prompts, 3 a second; TTFT 30 s, TBT 60 ms. Then arrivals at twice what decode can
    take, and prefill slowed until it can do little more than decode.
    """
    report = Report()
    capacity = measure_capacity(lab)
    report.rows += [
        Row("prefill alone", "requests/s", capacity.prefill_per_s),
        Row("decode alone", "requests/s", capacity.decode_per_s),
        Row("decode alone", "decode tokens/s", capacity.tokens_per_s),
    ]
    refused_by_rule: dict[str, float] = {}
    for rule in ADMISSION_RULES:
        outcomes = run_seeds(lab, rule, REJECTION, lab.base.hardware)
        refused_by_rule[rule] = _refused(outcomes)
        report.rows.append(
            Row(rule, "refused", refused_by_rule[rule], float(paper.REFUSED[rule]), WHY)
        )
        report.rows += _rows(rule, outcomes)
    report.charts.append(bars("Refused of 1,000", "requests", {"ours": refused_by_rule}))
    _add_headrooms(lab, report)
    return report


def _add_headrooms(lab: Lab, report: Report) -> None:
    workload = replace(REJECTION, requests_per_s=ARRIVALS_PER_S)
    shown: dict[str, list[tuple[float, float]]] = {rule: [] for rule in ADMISSION_RULES}
    for headroom in HEADROOMS:
        slower = slower_prefill(lab.base.hardware, OWN_HEADROOM / headroom)
        for rule in ADMISSION_RULES:
            outcomes = run_seeds(lab, rule, workload, slower)
            label = f"prefill {headroom:g} x decode, {rule}"
            report.rows.append(Row(label, "refused", _refused(outcomes)))
            report.rows += _rows(label, outcomes)
            shown[rule].append((headroom, _refused(outcomes)))
    report.charts.append(
        Chart(
            "Refused of 1,000 at twice what decode can take", "prefill over decode, requests/s",
            "requests", tuple(Series(rule, tuple(points)) for rule, points in shown.items()),
        )
    )  # fmt: skip


def _refused_when_filled(outcome: Outcome) -> float:
    return outcome.refused_share(FILLED_S, outcome.requests[-1].arrival_s - BEFORE_END_S)


def _refused(outcomes: Sequence[Outcome]) -> float:
    return mean([one.num_refused for one in outcomes])


def _rows(label: str, outcomes: Sequence[Outcome]) -> list[Row]:
    refused = [float(one.num_refused) for one in outcomes]
    return [
        Row(label, "refused, least of the seeds", min(refused)),
        Row(label, "refused, most of the seeds", max(refused)),
        Row(label, "refused share, filled", mean([_refused_when_filled(one) for one in outcomes])),
        Row(label, "wasted prefill s", mean([one.wasted_prefill_s for one in outcomes])),
        Row(label, "mean TTFT s", mean([one.mean_ttft_s for one in outcomes])),
        Row(label, "within targets", mean([one.effective(REJECTION_SLO) for one in outcomes])),
        Row(label, "prefill busy", mean([one.prefill_busy for one in outcomes])),
        Row(label, "decode tokens/s", mean([one.decoded_per_s(FILLED_S) for one in outcomes])),
    ]


def run_seeds(
    lab: Lab,
    rule: AdmissionRule,
    workload: WorkloadSettings,
    hardware: Hardware,
    seeds: Sequence[int] = range(SEEDS),
) -> list[Outcome]:
    return [
        lab.run(
            make_workload(replace(workload, seed=seed)), f"{rule} {seed}",
            policy="global_cache_aware", num_prefills=NUM_PREFILLS, num_decodes=NUM_DECODES,
            admission=rule, slo=REJECTION_SLO, seed=seed, hardware=hardware,
        )
        for seed in seeds
    ]  # fmt: skip


def measure_capacity(lab: Lab) -> Capacity:
    """Each role alone: all prompts at once and room for all; then prompts that cost nothing, more
    than decode can take, judged at its door."""
    hardware = lab.base.hardware
    prompts = [replace(one, arrival_s=0.0, output_tokens=1) for one in make_workload(REJECTION)]
    prefilled = lab.run(
        prompts, "prefill alone", policy="global_cache_aware", num_prefills=NUM_PREFILLS,
        num_decodes=len(prompts),
    )  # fmt: skip
    workload = replace(REJECTION, requests_per_s=SATURATED_PER_S, num_requests=SATURATED_REQUESTS)
    decoded = run_seeds(lab, "baseline", workload, slower_prefill(hardware, 1e-6), seeds=range(3))
    tokens_per_s = mean([one.decoded_per_s(FILLED_S) for one in decoded])
    return Capacity(len(prompts) / prefilled.span_s, tokens_per_s)


def slower_prefill(hardware: Hardware, times: float) -> Hardware:
    return replace(
        hardware,
        prefill_base_s=hardware.prefill_base_s * times,
        prefill_linear_s=hardware.prefill_linear_s * times,
        prefill_quadratic_s=hardware.prefill_quadratic_s * times,
    )
