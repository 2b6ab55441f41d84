import pytest

from shared.simulator.coupled_cluster import CoupledCluster
from tests.support.simulating import paper_hardware, request


def run(requests, mode, num_instances=1):
    return CoupledCluster(paper_hardware(), mode, num_instances).run(requests)


def test_a_prompt_stops_the_batch_and_chunks_stop_it_less():
    """One answers 500 tokens; a long prompt comes in between."""
    requests = [request(0.0, 0, 4, output_tokens=500), request(5.0, 1_000, 120)]
    worst = {mode: run(requests, mode).requests[0].tbt_s for mode in ("plain", "chunked")}
    stall_s = paper_hardware().prefill.seconds(120 * 512, 0)
    # Of 499 intervals the longest tenth, one of them with the whole prompt in it.
    assert worst["plain"] > stall_s / 50
    assert worst["chunked"] < worst["plain"]


def test_only_with_a_prefix_cache_a_second_turn_computes_less():
    requests = [request(0.0, 0, 40), request(60.0, 0, 44)]
    hardware = paper_hardware()
    assert run(requests, "plain").requests[1].compute_s == pytest.approx(
        hardware.prefill.seconds(44 * 512, 0)
    )
    second = run(requests, "prefix").requests[1]
    assert second.local_tokens == 40 * 512
    assert second.compute_s == pytest.approx(hardware.prefill.seconds(44 * 512, 40 * 512))


def test_an_instance_keeps_its_cache_to_itself():
    requests = [request(0.0, 0, 40), request(0.1, 5_000, 200), request(60.0, 0, 44)]
    outcome = run(requests, "prefix", num_instances=2)
    assert outcome.requests[0].prefill != outcome.requests[1].prefill
    assert {one.fate for one in outcome.requests} == {"served"}


def test_every_request_ends_and_nothing_is_left():
    requests = [
        request(0.3 * n, 1_000 * n, 1 + n % 30, output_tokens=1 + n % 90) for n in range(80)
    ]
    for mode in ("plain", "prefix", "chunked"):
        outcome = run(requests, mode, num_instances=3)
        assert all(one.ttft_s > 0 for one in outcome.requests)
        assert all(one.tbt_s > 0 for n, one in enumerate(outcome.requests) if n % 90)
