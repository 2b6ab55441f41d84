from shared.simulator.outcome import mean
from shared.simulator.trace import BLOCK_TOKENS
from shared.simulator.workload import WorkloadSettings, make_workload


def test_a_workload_has_the_rate_and_lengths_it_was_asked_for():
    settings = WorkloadSettings(num_requests=3_000, requests_per_s=5.0, turn_share=0.0)
    requests = make_workload(settings)
    assert 4.6 < len(requests) / requests[-1].arrival_s < 5.4
    prompt = settings.prompt_blocks * BLOCK_TOKENS
    assert 7_200 < mean([r.num_tokens - prompt for r in requests]) < 8_800
    assert 300 < mean([r.output_tokens for r in requests]) < 380


def test_a_workload_is_the_same_for_the_same_seed_only():
    small = WorkloadSettings(num_requests=50)
    assert make_workload(small) == make_workload(small)
    assert make_workload(small) != make_workload(WorkloadSettings(num_requests=50, seed=1))


def test_turns_extend_their_session():
    requests = make_workload(WorkloadSettings(num_requests=200))
    known = {()}
    grown = 0
    for request in requests:
        grown += any(request.block_ids[:n] in known for n in range(3, len(request.block_ids)))
        known.add(request.block_ids)
    assert grown > 40
