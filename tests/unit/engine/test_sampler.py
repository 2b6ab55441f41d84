from collections import Counter

import pytest
import torch

from shared.engine.sampler import SamplingParams, sample


def draws(params: SamplingParams, logits: torch.Tensor, count: int) -> Counter[int]:
    return Counter(sample(logits, params, position) for position in range(count))


def test_temperature_zero_takes_the_most_likely_and_the_lowest_of_equals() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 2.0])
    assert sample(logits, SamplingParams(temperature=0.0), position=5) == 1


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(seed=7)
    forward = [sample(logits, params, position) for position in range(50)]
    backward = [sample(logits, params, position) for position in reversed(range(50))]
    assert forward == backward[::-1]
    assert forward != [sample(logits, SamplingParams(seed=8), p) for p in range(50)]
    assert len(set(forward)) > 10


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.6, 0.3, 0.1])
    seen = draws(SamplingParams(seed=3), probabilities.log(), 4000)
    for token, probability in enumerate(probabilities.tolist()):
        assert seen[token] / 4000 == pytest.approx(probability, abs=0.03)


def test_temperature_sharpens() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log()
    assert draws(SamplingParams(temperature=0.2), logits, 500)[0] > 450


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    assert set(draws(SamplingParams(top_k=2), logits, 300)) == {1, 3}
    assert set(draws(SamplingParams(top_p=0.6), logits, 300)) == {1, 3}
    assert set(draws(SamplingParams(top_p=0.4), logits, 300)) == {1}
    assert set(draws(SamplingParams(top_k=1, temperature=5.0), logits, 50)) == {1}


def test_a_negative_or_a_large_seed_is_a_seed() -> None:
    logits = torch.zeros(100)
    assert sample(logits, SamplingParams(seed=-1), 0) == sample(
        logits, SamplingParams(seed=2**64 - 1), 0
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -0.1), ("temperature", float("nan")), ("top_k", -1), ("top_p", 0.0)],
)
def test_parameters_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
