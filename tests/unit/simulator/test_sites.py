"""A cluster that is made and serves as a live one: shared nodes, chunks readable at once."""

import pytest

from shared.simulator.cluster import SimulatedCluster
from shared.simulator.prefix_pool import key_of
from shared.simulator.settings import ClusterSettings, Sites
from shared.simulator.trace import BLOCK_TOKENS
from tests.support.simulating import paper_hardware, request, simulate

TWO_NODES = Sites(prefills=("n1", "n2"), decodes=("n1", "n2"))
ONE_NODE = Sites(prefills=("n1",), decodes=("n1",))


def test_on_one_node_nothing_is_handed_over():
    outcome = simulate([request(0.0, 0, 16, output_tokens=4)], sites=ONE_NODE)
    assert outcome.sent_bytes == 0
    assert outcome.requests[0].handoff_s == 0


def test_decode_on_another_node_keeps_what_it_was_sent():
    settings = ClusterSettings(paper_hardware(), sites=Sites(prefills=("n1",), decodes=("n2",)))
    cluster = SimulatedCluster(settings)
    outcome = cluster.run([request(0.0, 0, 16, output_tokens=2)])
    assert outcome.sent_bytes > 0
    keys = [key_of(block) for block in range(16)]
    assert [cluster.machines.nodes[name].num_leading(keys) for name in ("n1", "n2")] == [16, 16]


def test_a_prompt_finds_the_chunks_that_were_computed_while_it_waited():
    requests = [request(0.0, 0, 32), request(0.01, 0, 36)]
    outcome = simulate(requests, sites=ONE_NODE, policy="local_cache_aware")
    assert outcome.requests[1].local_tokens == 32 * BLOCK_TOKENS
    alone = simulate(requests, num_prefills=1, num_decodes=1, policy="local_cache_aware")
    assert alone.requests[1].local_tokens == 0


def test_a_prompt_goes_where_its_prefix_is_being_computed():
    busy = request(0.0, 1_000, 200)
    outcome = simulate([busy, request(0.01, 0, 64), request(0.02, 0, 66)], sites=TWO_NODES)
    _, first, second = outcome.requests
    assert second.prefill == first.prefill
    assert second.local_tokens == 64 * BLOCK_TOKENS


def test_only_whole_grid_chunks_are_shared():
    requests = [request(0.0, 0, 7), request(60.0, 0, 16)]
    outcome = simulate(
        requests, sites=ONE_NODE, grid_tokens=4 * BLOCK_TOKENS, chunk_tokens=4 * BLOCK_TOKENS
    )
    assert outcome.requests[1].local_tokens == 4 * BLOCK_TOKENS


def test_what_a_request_takes_beside_its_stages_is_in_its_ttft_and_is_predicted():
    hardware = paper_hardware(request_s=0.05, prefill_base_s=0.1)
    (one,) = simulate([request(0.0, 0, 16)], hardware=hardware).requests
    expected_s = hardware.prefill.seconds(16 * BLOCK_TOKENS, 0) + 0.05
    assert one.ttft_s == pytest.approx(expected_s)
    assert one.predicted_ttft_s == pytest.approx(expected_s)
    assert one.queue_s == pytest.approx(0.0)


def test_what_a_prompt_takes_once_is_not_counted_for_each_chunk():
    hardware = paper_hardware(prefill_base_s=0.1)
    (one,) = simulate([request(0.0, 0, 64)], hardware=hardware, chunk_tokens=1_024).requests
    assert one.ttft_s == pytest.approx(hardware.prefill.seconds(64 * BLOCK_TOKENS, 0))
