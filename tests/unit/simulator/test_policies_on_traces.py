"""Placement on the public conversation trace: minutes of compute, so only with --all."""

import functools
from collections.abc import Sequence

import pytest

from scripts.simulate.lab import Lab
from scripts.simulate.overload_experiments import (
    FILLED_S,
    OWN_HEADROOM,
    REJECTION,
    SEEDS,
    run_seeds,
    slower_prefill,
)
from shared.scheduling.admission import ADMISSION_RULES
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.fifo_bound import fifo_bound_ttfts_s
from shared.simulator.hardware import Hardware
from shared.simulator.outcome import Outcome, mean
from shared.simulator.settings import ClusterSettings
from tests.support.simulating import paper_hardware
from tests.support.traces import public_trace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("simulator")]


@functools.cache
def run(policy: str, num_prefills: int, discipline: str) -> Outcome:
    settings = ClusterSettings(
        paper_hardware(), policy=policy, num_prefills=num_prefills, discipline=discipline
    )
    return SimulatedCluster(settings).run(public_trace("conversation"))


def bound_s(num_prefills: int) -> float:
    requests = public_trace("conversation")
    return mean(fifo_bound_ttfts_s(requests, num_prefills, paper_hardware()))


@pytest.mark.parametrize(
    ("num_prefills", "to_local", "to_bound", "p99_to_fifo"),
    [(8, 0.88, 1.03, 1.05), (6, 0.73, 1.0, 1.15)],
)
def test_moonpool_beats_local_placement_and_stays_near_the_bound(
    num_prefills, to_local, to_bound, p99_to_fifo
):
    ours = run("moonpool", num_prefills, "shortest_first")
    local = run("local_cache_aware", num_prefills, "fifo")
    fifo = run("moonpool", num_prefills, "fifo")
    assert ours.mean_ttft_s <= to_local * local.mean_ttft_s
    assert ours.mean_ttft_s <= to_bound * bound_s(num_prefills)
    assert ours.ttft_percentile_s(99) <= p99_to_fifo * fifo.ttft_percentile_s(99)
    assert ours.imbalance <= 1.3


def test_the_more_a_policy_knows_the_lower_its_mean_ttft():
    order = ("global_cache_aware", "local_cache_aware", "least_loaded", "random")
    means = [run(policy, 8, "fifo").mean_ttft_s for policy in order]
    assert means == sorted(means)
    assert means[-1] >= 4 * means[0]


def test_no_link_makes_ours_slower_than_recomputing_and_only_the_slowest_the_papers():
    """The shape of the paper's Fig. 13; the hand-over to decode counts as it seems to there."""
    requests = public_trace("synthetic")
    size = {"num_prefills": 16, "num_decodes": 16}

    def ttfts_s(policy: str, gbps: float, pool_tokens: int = 3_000_000) -> tuple[float, float]:
        hardware = paper_hardware().with_line_rate(gbps)
        settings = ClusterSettings(hardware, policy=policy, pool_tokens=pool_tokens, **size)
        served = SimulatedCluster(settings).run(requests).served
        return mean([one.ttft_s for one in served]), mean(
            [one.ttft_s + one.handoff_s for one in served]
        )

    recompute_s, _ = ttfts_s("least_loaded", 400, pool_tokens=0)
    whole_s = [ttfts_s("global_cache_aware", gbps)[1] for gbps in (24, 40, 80, 100, 400)]
    assert whole_s == sorted(whole_s, reverse=True)
    assert whole_s[0] > recompute_s > whole_s[1]
    # The knee: from 40 to 100 Gbps more is won than by all that is beyond.
    assert whole_s[1] - whole_s[3] > whole_s[3] - whole_s[4]
    assert all(ttfts_s("moonpool", gbps)[0] <= recompute_s for gbps in (24, 100))


def overloaded(rule: str, hardware: Hardware, seeds: Sequence[int] = range(SEEDS)) -> list[Outcome]:
    lab = Lab(ClusterSettings(paper_hardware()), public_trace, no_tick)
    return run_seeds(lab, rule, REJECTION, hardware, seeds)


def test_in_overload_of_decode_nothing_is_wasted_and_the_forecast_refuses_fewest_of_the_early():
    runs = {rule: overloaded(rule, paper_hardware()) for rule in ADMISSION_RULES}
    wasted_s = {rule: mean([one.wasted_prefill_s for one in runs[rule]]) for rule in runs}
    refused = {rule: mean([one.num_refused for one in runs[rule]]) for rule in runs}
    assert wasted_s["baseline"] > 0
    assert wasted_s["early_rejection"] == wasted_s["predicted"] == 0
    assert refused["predicted"] <= refused["early_rejection"]
    # Who refuses after the prefill never leaves decode idle: nobody can refuse fewer, but by waste.
    assert refused["predicted"] <= 1.03 * refused["baseline"]


def test_what_late_refusals_waste_starves_decode_only_where_prefill_can_do_no_more_than_decode():
    def tokens_per_s(headroom: float) -> float:
        slower = slower_prefill(paper_hardware(), OWN_HEADROOM / headroom)
        runs = overloaded("baseline", slower, seeds=range(3))
        return mean([one.decoded_per_s(FILLED_S) for one in runs])

    assert 0.9 < tokens_per_s(1.0) / tokens_per_s(OWN_HEADROOM) < 0.99


def no_tick(_label: str, _total: int):
    return lambda: None
