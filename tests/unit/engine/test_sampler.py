from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.logit_changes import LogitChanges
from shared.engine.sampler import Sampler, choose_each, sample
from shared.engine.sampling_params import SamplingParams


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
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("min_p", 1.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
        ("logit_bias", ((-1, 0.0),)),
        ("logit_bias", ((1, 101.0),)),
        ("top_logprobs", 21),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def whole_sort_draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The plain definition: everything in order, cut by k, by min-p, by p, then drawn."""
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    order = order[: params.top_k] if params.top_k else order
    scaled = logits.double()[order] / params.temperature
    weights = (scaled - scaled[0]).exp()
    weights = weights[weights >= params.min_p]
    cumulative = weights.cumsum(0)
    if params.top_p < 1.0:
        num_kept = int(torch.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1
        cumulative = cumulative[:num_kept]
    bits = np.random.Philox(key=params.seed, counter=position)
    drawn = float(np.random.Generator(bits).random()) * float(cumulative[-1])
    return order[int(torch.searchsorted(cumulative, drawn, right=True))]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.5),
        SamplingParams(seed=3, top_p=0.95),
        SamplingParams(seed=4, top_k=40, top_p=0.9),
        SamplingParams(seed=5, min_p=0.05),
        SamplingParams(seed=6, top_k=1000, min_p=0.001, top_p=0.99, temperature=1.5),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_ordering_only_what_is_needed_gives_the_tokens_of_a_whole_sort(
    params: SamplingParams, scale: float
) -> None:
    generator = torch.Generator().manual_seed(5)
    # Rounded, so that many are equal.
    logits = (torch.randn(5000, generator=generator) * scale * 4).round() / 4
    for position in range(40):
        assert sample(logits, params, position) == whole_sort_draw(logits, params, position)


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    assert set(draws(SamplingParams(min_p=0.4), logits, 300)) == {1, 3}
    assert set(draws(SamplingParams(min_p=1.0), logits, 50)) == {1}


def test_presence_and_frequency_count_the_answer_and_repetition_the_prompt_too() -> None:
    logits = np.array([2.0, 1.9, -1.0, 1.0], dtype=np.float32)
    greedy = {"temperature": 0.0}
    presence = Sampler(SamplingParams(presence_penalty=0.5, **greedy), prompt_tokens=[0])
    assert [presence.choose(logits, at).token for at in range(4)] == [0, 1, 0, 0]
    frequency = Sampler(SamplingParams(frequency_penalty=0.5, **greedy))
    assert [frequency.choose(logits, at).token for at in range(6)] == [0, 1, 0, 1, 0, 3]
    repetition = Sampler(SamplingParams(repetition_penalty=2.0, **greedy), prompt_tokens=[0, 2])
    assert [repetition.choose(logits, at).token for at in range(2)] == [1, 0]


def test_a_repetition_penalty_makes_unlikely_tokens_less_likely() -> None:
    changes = LogitChanges(SamplingParams(repetition_penalty=2.0), [0, 1], [])
    changed = changes.applied(np.array([4.0, -4.0, 1.0], dtype=np.float32))
    assert changed.tolist() == [2.0, -8.0, 1.0]


def test_a_bias_forbids_or_forces_a_token() -> None:
    logits = torch.tensor([5.0, 1.0, 0.0])
    assert sample(logits, SamplingParams(temperature=0.0, logit_bias=((0, -100.0),)), 0) == 1
    assert set(draws(SamplingParams(logit_bias=((2, 100.0),)), logits, 50)) == {2}


@given(
    num_given=st.integers(0, 30),
    seed=st.integers(0, 5),
    temperature=st.sampled_from([0.0, 0.7]),
)
@settings(max_examples=40, deadline=None)
def test_a_sampler_rebuilt_from_the_tokens_given_goes_on_the_same(
    num_given: int, seed: int, temperature: float
) -> None:
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.3,
        logit_bias=((3, 1.0),),
    )
    rows = np.random.default_rng(seed).normal(size=(30, 50)).astype(np.float32)
    whole = Sampler(params, [1, 2, 3])
    answer = [whole.choose(row, position).token for position, row in enumerate(rows)]
    rebuilt = Sampler(params, [3, 2, 1], answer[:num_given])
    rest = [rebuilt.choose(rows[at], at).token for at in range(num_given, 30)]
    assert answer[:num_given] + rest == answer


def test_logprobs_are_the_models_own_whatever_changes_the_choice() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(3)) * 5
    expected = torch.log_softmax(logits, dim=0)
    params = SamplingParams(temperature=0.3, seed=1, logit_bias=((7, 50.0),), top_logprobs=5)
    chosen = Sampler(params).choose(logits.numpy(), 0)
    assert chosen.token == 7
    assert chosen.logprobs is not None
    assert chosen.logprobs.logprob == pytest.approx(float(expected[7]), abs=1e-4)
    values, tokens = expected.topk(5)
    assert [token for token, _ in chosen.logprobs.top] == tokens.tolist()
    assert [value for _, value in chosen.logprobs.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_a_batch_of_mixed_requests_gives_each_what_it_gets_alone() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(4)) * 3
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=1),
        SamplingParams(temperature=0.0, top_logprobs=3),
        SamplingParams(temperature=0.0, presence_penalty=1.0),
        SamplingParams(seed=2, top_p=0.5, top_logprobs=0),
        SamplingParams(temperature=0.0),
    ]
    rows = [(row, Sampler(params), 9) for row, params in enumerate(kinds) if row != 1]
    alone = [Sampler(kinds[row]).choose(logits[row].numpy(), 9) for row, _, _ in rows]
    assert choose_each(logits, rows) == alone
