"""Lets computed prompts join a decode instance, or refuses them: its batch, seen by DecodeJudge."""

from collections.abc import Iterable

from shared.decisions.profile_file import load_profile
from shared.decisions.refusals import error_info, targets_of
from shared.messages.decode import JudgeReply
from shared.runtime.clock import monotonic_s
from shared.scheduling.cost_model import CostProfile
from shared.scheduling.decode_judge import BatchNow, DecodeJudge
from shared.scheduling.slo import Slo, tbt_s
from shared.simulator.hardware import load_hardware
from shared.worker.decode_batch import DecodeBatch, Sequence
from shared.worker.decode_job import DecodeJob
from shared.worker.promises import Promises
from shared.worker.settings import WorkerSettings

DECODE_TIME_S = 10.0
"""How long an answer is taken to last until some have ended."""


class DecodeJudging:
    """Owns what this instance has learnt of its own steps."""

    def __init__(self, settings: WorkerSettings, batch: DecodeBatch, promises: Promises) -> None:
        self._judge = DecodeJudge(_costs_of(settings), DECODE_TIME_S)
        self._batch = batch
        self._promises = promises
        self.refused_total = 0

    def judge(
        self, job: DecodeJob, attempts: Iterable[DecodeJob], allowed_tbt_s: float
    ) -> JudgeReply:
        """`attempts`: all that are here. The first answer stays."""
        if job.verdict is None:
            now, allowed = self._batch_now(attempts), Slo(tbt_s=allowed_tbt_s)
            job.verdict = self._judge.judge(now, job.run.num_tokens, allowed)
            job.judged_s = monotonic_s()
            self.refused_total += job.verdict.refusal is not None
        refusal = job.verdict.refusal
        if refusal is None:
            return JudgeReply()
        told = {"targets": targets_of(refusal)}
        return JudgeReply(refusal=error_info(refusal).model_copy(update=told))

    def ended(self, job: DecodeJob, sequence: Sequence) -> None:
        """Its intervals begin with token 0, which prefill gives once it has been let in."""
        times_s = sequence.token_times_s
        if job.verdict is None or sequence.failure is not None or len(times_s) < 2:
            return
        given_s = [job.judged_s, *times_s[1:]]
        self._judge.learn(tbt_s(given_s), job.verdict.prior_step_s, given_s[-1] - given_s[0])

    def _batch_now(self, attempts: Iterable[DecodeJob]) -> BatchNow:
        """Who was let in and is not inside yet counts: many prompts may be done at one time."""
        batch = self._batch
        coming = [one for one in attempts if one.is_computed and one.handle not in batch]
        return BatchNow(
            running=len(batch) + len(coming),
            context_tokens=batch.context_tokens + sum(one.run.num_tokens for one in coming),
            missing_tokens=self._promises.missing_tokens,
        )


def _costs_of(settings: WorkerSettings) -> CostProfile:
    if settings.profile is not None:
        return load_profile(settings.profile)
    return CostProfile() if settings.timed_by is None else load_hardware(settings.timed_by).costs
