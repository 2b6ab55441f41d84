"""Placement on the public conversation trace: minutes of compute, so only with --all."""

import functools

import pytest

from shared.simulator.cluster import ClusterSettings, SimulatedCluster
from shared.simulator.fifo_bound import fifo_bound_ttfts_s
from shared.simulator.outcome import Outcome, mean
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
