import dataclasses

import pytest

from shared.kv.eviction.lru import LruEviction
from shared.scheduling.slo import Slo
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import BLOCK_TOKENS
from shared.simulator.virtual_node import VirtualNode, transfer
from tests.support.simulating import paper_hardware, request, simulate
from tests.unit.simulator.test_hit_rate import sessions


def test_one_request_takes_what_the_cost_model_says():
    outcome = simulate([request(0.0, 0, 16)])
    expected = paper_hardware().prefill.seconds(16 * BLOCK_TOKENS, 0)
    assert outcome.requests[0].ttft_s == pytest.approx(expected)
    assert outcome.requests[0].predicted_ttft_s == pytest.approx(expected)


def test_a_second_turn_computes_only_what_is_new():
    outcome = simulate([request(0.0, 0, 16), request(60.0, 0, 20)], num_prefills=1)
    second = outcome.requests[1]
    assert second.local_tokens == 16 * BLOCK_TOKENS
    expected = paper_hardware().prefill.seconds(20 * BLOCK_TOKENS, 16 * BLOCK_TOKENS)
    assert second.ttft_s == pytest.approx(expected)


def test_a_prefix_on_a_busy_node_is_fetched_by_an_idle_one():
    busy = [request(60.0, 1_000 * n, 200) for n in (1, 2)]
    requests = [request(0.0, 0, 64), *busy, request(60.1, 0, 70), request(60.1, 0, 72)]
    outcome = simulate(requests, policy="global_cache_aware", num_prefills=4)
    assert outcome.fetches >= 1
    fetched = [one for one in outcome.requests if one.fetched_tokens]
    assert fetched[0].fetched_tokens <= 64 * BLOCK_TOKENS
    assert fetched[0].load_s > 0


def test_transfers_queue_at_a_sender_and_at_a_receiver():
    nodes = [VirtualNode(name, 1, LruEviction(), 1e9) for name in "abcd"]
    first, second, third, fourth = nodes
    assert transfer([first], second, 10**9, 5.0, 0.0) == pytest.approx(6.0)
    assert transfer([first], third, 10**9, 5.0, 0.0) == pytest.approx(7.0)
    assert transfer([fourth], second, 10**9, 5.0, 0.0) == pytest.approx(7.0)


def test_a_striped_transfer_is_bound_by_its_receiver():
    nodes = [VirtualNode(name, 1, LruEviction(), 1e9) for name in "abc"]
    assert transfer(nodes[:2], nodes[2], 10**9, 0.0, 0.0) == pytest.approx(1.0)
    assert nodes[0].sends.free_s == pytest.approx(0.5)


def test_the_same_seed_gives_the_same_results_to_the_byte():
    requests = sessions(150, seed=2)
    first = simulate(requests, discipline="shortest_first", seed=4)
    second = simulate(requests, discipline="shortest_first", seed=4)
    assert repr(dataclasses.asdict(first)) == repr(dataclasses.asdict(second))


def test_short_prompts_pass_a_long_one_only_under_shortest_first():
    requests = [request(0.0, 0, 240), request(1.0, 1_000, 2)]
    fifo = simulate(requests, num_prefills=1, discipline="fifo")
    shortest = simulate(requests, num_prefills=1, discipline="shortest_first")
    assert shortest.requests[1].ttft_s < 2 < fifo.requests[1].ttft_s
    assert shortest.requests[0].ttft_s < fifo.requests[0].ttft_s + 1


def test_decode_steps_follow_batch_and_context():
    hardware = paper_hardware()
    outcome = simulate([request(0.0, 0, 16, output_tokens=101)])
    context_s = hardware.decode_context_s * (16 * BLOCK_TOKENS + 100) / 1024
    step_s = hardware.decode_step_s + hardware.decode_sequence_s + context_s
    # The longest tenth holds the first interval, in which the KV is handed over.
    assert step_s * 0.99 < outcome.requests[0].tbt_s < step_s + 0.02


def test_a_full_decode_pool_refuses():
    hardware = paper_hardware(decode_capacity_tokens=20_000)
    requests = [request(0.0, 1_000 * n, 32, output_tokens=500) for n in range(4)]
    outcome = simulate(requests, num_decodes=1, hardware=hardware)
    assert [one.fate for one in outcome.requests].count("served") == 1
    assert outcome.num_refused == 3


def test_early_rejection_wastes_no_prefill_and_the_baseline_does():
    """Many answers at once: TBT leaves its target, which the baseline sees after the prefill."""
    requests = [request(0.2 * n, 1_000 * n, 16, output_tokens=2_000) for n in range(120)]
    slo = Slo(ttft_s=30.0, tbt_s=0.035)
    wasted = {
        rule: simulate(requests, num_prefills=8, slo=slo, admission=rule).wasted_prefill_s
        for rule in ("baseline", "early_rejection", "predicted")
    }
    assert wasted["baseline"] > 0
    assert wasted["early_rejection"] == wasted["predicted"] == 0


def test_no_promise_and_no_hold_is_left_at_the_end():
    cluster = SimulatedCluster(ClusterSettings(paper_hardware(), num_prefills=3, num_decodes=2))
    cluster.run(sessions(200, seed=9))
    for decode in cluster.machines.decodes.values():
        assert (decode.room_tokens, decode.num_promised, decode.running) == (0, 0, 0)
        assert decode.promised_context_tokens == 0
    for node in cluster.machines.nodes.values():
        node.pool.check_integrity()
        assert node.pool.counts.held == node.pool.counts.writing == 0
    cluster.core.check_integrity()
