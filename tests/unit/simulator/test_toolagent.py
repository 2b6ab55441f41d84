import pytest

from shared.simulator.hit_rate import measure
from shared.simulator.outcome import mean
from shared.simulator.toolagent import ToolAgentSettings, make_toolagent


def test_it_has_the_published_means_and_hits():
    requests = make_toolagent(ToolAgentSettings(num_requests=12_000))
    assert mean([one.num_tokens for one in requests]) == pytest.approx(8_596, rel=0.05)
    assert mean([one.output_tokens for one in requests]) == pytest.approx(182, rel=0.05)
    assert len(requests) / requests[-1].arrival_s == pytest.approx(6.56, rel=0.05)
    # Fig. 9 of the paper: .387 at 1 M tokens.
    assert measure(requests, "lru", 1_000_000, "trace").hit == pytest.approx(0.387, rel=0.06)


def test_an_id_names_a_block_and_all_before_it():
    before: dict[int, int] = {}
    for request in make_toolagent(ToolAgentSettings(num_requests=2_000, seed=3)):
        assert len(request.block_ids) == request.num_tokens // 512
        for early, late in zip((-1, *request.block_ids), request.block_ids, strict=False):
            assert before.setdefault(late, early) == early


def test_the_same_seed_gives_the_same_trace():
    settings = ToolAgentSettings(num_requests=200, seed=5)
    assert make_toolagent(settings) == make_toolagent(settings)
