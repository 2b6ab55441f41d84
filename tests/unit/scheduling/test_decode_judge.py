"""Whether a decode instance lets in a request whose prefill is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.cost_model import CostProfile
from shared.scheduling.decode_judge import BatchNow, DecodeJudge
from shared.scheduling.slo import NO_SLO, Slo

PROFILE = CostProfile(decode_step_s=0.03, decode_sequence_s=0.01, decode_context_s=0.01)
SLO = Slo(tbt_s=0.1)


def new_judge() -> DecodeJudge:
    return DecodeJudge(PROFILE, decode_time_s=20.0)


def test_the_batch_is_judged_as_it_is_with_the_newcomer() -> None:
    judge = new_judge()
    lets_in = judge.judge(BatchNow(running=5, context_tokens=0), 1_024, SLO)
    assert lets_in.refusal is None
    assert lets_in.prior_step_s == pytest.approx(0.03 + 6 * 0.01 + 0.01)
    refusal = judge.judge(BatchNow(running=5, context_tokens=1_024), 1_024, SLO).refusal
    assert refusal is not None
    assert (refusal.code, refusal.is_retryable) == ("overloaded", True)
    assert refusal.predicted.tbt_s == pytest.approx(0.11)
    assert (refusal.predicted.ttft_s, refusal.allowed) == (None, SLO)
    assert "TBT would be 110 ms, allowed are 100 ms" in refusal.message
    assert refusal.retry_after_s == pytest.approx(20.0 * (1 - 100 / 110))


def test_without_a_target_nothing_is_refused_for_its_steps() -> None:
    assert new_judge().judge(BatchNow(10_000, 10_000), 1, NO_SLO).refusal is None


def test_who_would_wait_outside_of_the_batch_is_refused_whatever_its_steps_take() -> None:
    refusal = new_judge().judge(BatchNow(1, 0, missing_tokens=7), 1, SLO).refusal
    assert refusal is not None
    assert "decode lacks room for 7 tokens" in refusal.message
    assert refusal.allowed == SLO
    assert refusal.retry_after_s == 20.0


def test_it_learns_how_long_its_steps_really_are() -> None:
    judge = new_judge()
    for _ in range(30):
        seen = judge.judge(BatchNow(1, 0), 1_024, SLO)
        judge.learn(3 * seen.prior_step_s, seen.prior_step_s, 5.0)
    later = judge.judge(BatchNow(1, 0), 1_024, SLO)
    assert later.prior_step_s == pytest.approx(0.06)
    assert later.refusal is not None
    assert later.refusal.predicted.tbt_s == pytest.approx(0.18, rel=0.05)
    # Answers last shorter than it was taken for: it is worth another try sooner.
    assert later.refusal.retry_after_s is not None
    assert later.refusal.retry_after_s < 5.0


def test_an_answer_that_was_not_judged_says_nothing_of_its_steps() -> None:
    judge = new_judge()
    judge.learn(9.0, 0.0, 5.0)
    assert judge.judge(BatchNow(1, 0), 1_024, SLO).refusal is None


@given(
    running=st.integers(0, 50),
    more=st.integers(0, 50),
    context=st.integers(0, 200_000),
    allowed_s=st.floats(0.001, 1.0),
)
def test_who_is_refused_is_refused_by_a_fuller_batch_too(
    running: int, more: int, context: int, allowed_s: float
) -> None:
    judge, slo = new_judge(), Slo(tbt_s=allowed_s)
    seen = judge.judge(BatchNow(running, context), 500, slo)
    fuller = judge.judge(BatchNow(running + more, context + more * 100), 500, slo)
    assert fuller.prior_step_s >= seen.prior_step_s
    assert seen.refusal is None or fuller.refusal is not None
