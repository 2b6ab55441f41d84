"""The cost model learns the real times and survives strange ones."""

import random

import pytest

from shared.scheduling.cost_model import CostModel, CostProfile, PrefillCoefficients, PrefillSample
from shared.scheduling.decode_forecast import DecodeForecast
from shared.scheduling.events import BillFinished
from shared.scheduling.learning import Learnt
from shared.scheduling.vocabulary import PredictedTimes

REAL = PrefillCoefficients(0.02, 0.4, 0.05)


def samples(count: int, seed: int = 1) -> list[PrefillSample]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        n = rng.randrange(64, 8_192)
        p = rng.choice([0, 0, n // 2 // 256 * 256])
        made.append(PrefillSample(n, p, REAL.seconds(n, p) * rng.uniform(0.97, 1.03)))
    return made


def error(cost: CostModel) -> float:
    return max(
        abs(cost.prefill_s(n, p) / REAL.seconds(n, p) - 1)
        for n, p in [(256, 0), (2_048, 0), (8_000, 0), (8_000, 4_096)]
    )


def test_real_times_replace_the_prior() -> None:
    cost = CostModel()
    assert error(cost) > 0.5
    for sample in samples(128):
        cost.learn_prefill(sample)
    assert error(cost) < 0.1


def test_one_sample_moves_the_level() -> None:
    cost = CostModel()
    cost.learn_prefill(PrefillSample(1_024, 0, REAL.seconds(1_024, 0)))
    assert cost.prefill_s(1_024, 0) == pytest.approx(REAL.seconds(1_024, 0), rel=0.05)


@pytest.mark.parametrize(
    ("prior", "num_samples", "within"),
    [
        (PrefillCoefficients(0.01, 1.4, 0.03), 32, 0.2),  # attention's share a tenth of the real
        (PrefillCoefficients(0.01, 0.5, 0.13), 8, 0.35),
    ],
    ids=["a wrong prior gives way", "a right prior holds"],
)
@pytest.mark.parametrize("seed", range(5))
def test_what_a_hit_saves_follows_from_noisy_cold_prompts(
    seed: int, prior: PrefillCoefficients, num_samples: int, within: float
) -> None:
    rng = random.Random(seed)
    real = PrefillCoefficients(0.02, 0.5, 0.13)
    cost = CostModel(CostProfile(prefill=prior))
    for _ in range(num_samples):
        n = rng.randrange(256, 4_096)
        noisy_s = real.seconds(n, 0) * rng.uniform(0.85, 1.15)
        cost.learn_prefill(PrefillSample(n, 0, noisy_s))
    for cached in (512, 1_024, 1_536):
        saved = real.seconds(2_048, 0) - real.seconds(2_048, cached)
        predicted = cost.prefill_s(2_048, 0) - cost.prefill_s(2_048, cached)
        assert predicted == pytest.approx(saved, rel=within)


def test_strange_times_among_many_do_little() -> None:
    cost = CostModel()
    for index, sample in enumerate(samples(160)):
        strange = PrefillSample(sample.num_tokens, sample.prefix_tokens, sample.seconds * 20)
        cost.learn_prefill(strange if index % 16 == 15 else sample)
    assert error(cost) < 0.25


def test_impossible_samples_are_ignored() -> None:
    cost = CostModel()
    for sample in (PrefillSample(10, 10, 1.0), PrefillSample(10, 0, 0.0), PrefillSample(5, 9, 1)):
        cost.learn_prefill(sample)
    assert cost.coefficients == CostModel().coefficients


def test_longer_work_never_costs_less_and_a_longer_prefix_never_more() -> None:
    cost = CostModel()
    for sample in samples(64, seed=3):
        cost.learn_prefill(sample)
    assert cost.prefill_s(2_048, 0) <= cost.prefill_s(4_096, 0)
    assert cost.prefill_s(4_096, 2_048) <= cost.prefill_s(4_096, 1_024)


def test_bandwidth_and_steps_follow_what_is_measured() -> None:
    cost = CostModel()
    for _ in range(60):
        cost.learn_transfer(100 << 20, (100 << 20) / 5e8)
        cost.learn_decode(0.2, 1_000)
    assert cost.transfer_s(1 << 30) == pytest.approx((1 << 30) / 5e8, rel=0.1)
    assert cost.decode_step_s(1, 1_000) == pytest.approx(0.2, rel=0.1)
    assert cost.transfer_s(0) == 0.0


def test_many_answers_predicted_before_any_was_learnt_move_the_scale_no_further_than_the_truth():
    """A hundred requests are under way when the first bill comes: all say the same, once."""
    learnt = Learnt(CostModel(), DecodeForecast(10.0))
    said_s = learnt.cost.decode_step_s(8, 8_192)
    early = PredictedTimes(tbt_s=said_s, tbt_scale=learnt.cost.decode_scale)
    for _ in range(100):
        learnt.learn(BillFinished("m", 1_024, 0, 0.0, tbt_s=1.5 * said_s, predicted=early))
    assert learnt.cost.decode_step_s(8, 8_192) == pytest.approx(1.5 * said_s, rel=0.01)
    late = PredictedTimes(
        tbt_s=learnt.cost.decode_step_s(8, 8_192), tbt_scale=learnt.cost.decode_scale
    )
    for _ in range(100):
        learnt.learn(BillFinished("m", 1_024, 0, 0.0, tbt_s=1.5 * said_s, predicted=late))
    assert learnt.cost.decode_step_s(8, 8_192) == pytest.approx(1.5 * said_s, rel=0.01)


def test_the_disk_is_as_fast_as_it_was_measured_and_small_reads_say_nothing() -> None:
    model = CostModel(CostProfile(disk_bytes_per_s=1e9))
    model.learn_disk(1 << 10, 1.0)
    model.learn_disk(1 << 30, 0.0)
    assert model.disk_bytes_per_s == 1e9
    for _ in range(60):
        model.learn_disk(1 << 30, (1 << 30) / 3e9)
    assert model.disk_bytes_per_s == pytest.approx(3e9, rel=0.01)


def test_what_a_ttft_takes_beside_its_stages_is_the_median_of_the_last():
    cost = CostModel(CostProfile(request_s=0.02))
    for seconds in (0.1, 0.1, 5.0):
        cost.learn_request(seconds)
    assert cost.request_s == 0.02  # too few to overrule the prior
    cost.learn_request(0.1)
    assert cost.request_s == pytest.approx(0.1)
    for _ in range(64):
        cost.learn_request(0.3)
    assert cost.request_s == pytest.approx(0.3)
