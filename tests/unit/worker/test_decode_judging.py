"""What a decode instance counts when it lets a computed prompt join, and what it learns by."""

from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from shared.messages.common import InstanceRef, RequestRef, Sampling
from shared.messages.decode import DecodeRun
from shared.scheduling.cost_model import CostProfile
from shared.worker.decode_batch import DecodeBatch, Sequence
from shared.worker.decode_job import DecodeJob
from shared.worker.decode_judging import DecodeJudging
from shared.worker.promises import Limits, Promise, Promises
from shared.worker.settings import WorkerSettings

PRIOR = CostProfile()
NUM_TOKENS = 1_024
STEP_S = PRIOR.decode_step_s + PRIOR.decode_context_s
"""Of a batch, without what each sequence adds."""


class Batch:
    """Stands in for a DecodeBatch: who is inside, and their context."""

    def __init__(self, *handles: str, context_tokens: int = 0) -> None:
        self.handles = handles
        self.context_tokens = context_tokens

    def __len__(self) -> int:
        return len(self.handles)

    def __contains__(self, handle: str) -> bool:
        return handle in self.handles


def new_job(name: str) -> DecodeJob:
    here = InstanceRef(id="p", incarnation="p1", node="a")
    run = DecodeRun(
        ref=RequestRef(request_id=name, gateway="g", gateway_incarnation="g1"),
        incarnation="d1",
        model="m",
        num_tokens=NUM_TOKENS,
        chain=b"",
        sampling=Sampling(max_tokens=8),
        prefill=here,
        reply_subject="s",
        remaining_ms=1_000,
    )
    nobody: Any = None
    return DecodeJob(run, nobody, nobody)


def new_judging(
    batch: Batch | None = None, promises: Promises | None = None, **settings: Any
) -> DecodeJudging:
    none_promised = Promises(Limits(max_requests=9, max_tokens=2_000, max_blocks=None))
    made = WorkerSettings(**settings)
    return DecodeJudging(made, cast(DecodeBatch, batch or Batch()), promises or none_promised)


def predicted_s(judging: DecodeJudging, *others: DecodeJob) -> float:
    """What it says of a newcomer, whom it refuses."""
    job = new_job("newcomer")
    refusal = judging.judge(job, [job, *others], 1e-9).refusal
    assert refusal is not None
    assert refusal.targets is not None
    assert refusal.targets.predicted_tbt_s is not None
    return refusal.targets.predicted_tbt_s


def test_who_was_let_in_counts_until_it_is_in_the_batch_and_not_once_it_is_through() -> None:
    batch = Batch()
    judging = new_judging(batch)
    let_in, waiting = new_job("let-in"), new_job("waiting")
    assert judging.judge(let_in, [let_in, waiting], 9.0).refusal is None
    one_more_s = PRIOR.decode_sequence_s + PRIOR.decode_context_s
    alone_s = STEP_S + PRIOR.decode_sequence_s
    assert predicted_s(judging, let_in, waiting) == pytest.approx(alone_s + one_more_s)
    batch.handles, batch.context_tokens = (let_in.handle,), NUM_TOKENS
    assert predicted_s(judging, let_in, waiting) == pytest.approx(alone_s + one_more_s)
    batch.handles, batch.context_tokens = (), 0
    let_in.is_through = True
    assert predicted_s(judging, let_in, waiting) == pytest.approx(alone_s)


def test_a_question_that_is_asked_again_has_the_same_answer() -> None:
    batch = Batch()
    judging = new_judging(batch)
    let_in, refused = new_job("let-in"), new_job("refused")
    assert judging.judge(let_in, [let_in], 9.0).refusal is None
    said = judging.judge(refused, [let_in, refused], 1e-9)
    batch.handles = tuple(f"other{number}" for number in range(5_000))
    assert judging.judge(let_in, [let_in, refused], 9.0).refusal is None
    assert judging.judge(refused, [let_in, refused], 9.0) == said
    assert judging.refused_total == 1


def test_answers_that_hold_more_than_there_is_let_nobody_in() -> None:
    promises = Promises(Limits(max_requests=9, max_tokens=2_000, max_blocks=None))
    promises.give(Promise("grown", "g", "g1", 2_100, 1, None))
    job = new_job("newcomer")
    refusal = new_judging(promises=promises).judge(job, [job], 9.0).refusal
    assert refusal is not None
    assert "lacks room for 100 tokens" in refusal.message


def test_it_learns_from_intervals_that_begin_when_token_0_was_let_go() -> None:
    judging = new_judging()
    job = new_job("slow")
    assert judging.judge(job, [job], 9.0).refusal is None
    before_s = predicted_s(judging)
    nobody: Any = None
    sequence = Sequence(job.handle, NUM_TOKENS, job.run.sampling, [1], nobody)
    job.judged_s = 10.0
    sequence.token_times_s = [10.9, 11.0]  # it joined late: that counts
    judging.ended(job, sequence)
    assert predicted_s(judging) > 1.5 * before_s
    after_s = predicted_s(judging)
    sequence.token_times_s = [10.9]  # no token of ours: nothing to learn
    judging.ended(job, sequence)
    judging.ended(new_job("unjudged"), sequence)
    assert predicted_s(judging) == after_s


def test_it_starts_from_the_profile_of_these_machines(tmp_path: Path) -> None:
    profile = tmp_path / "here.json"
    profile.write_text('{"decode_step_s": 0.5, "decode_sequence_s": 0, "decode_context_s": 0}')
    assert predicted_s(new_judging(profile=profile)) == pytest.approx(0.5)
    assert predicted_s(new_judging(timed_by="a800-llama3-70b")) == pytest.approx(0.0263, rel=0.1)
    profile.write_text('{"decode_step_s": -1}')
    with pytest.raises(ValidationError, match="decode_step_s"):
        WorkerSettings(profile=profile)
