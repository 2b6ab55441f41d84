"""Whether a decode instance takes a request whose prefill is done: the paper's `baseline`.

The instance looks at its own batch, and learns from its own answers how long steps really are.
"""

from dataclasses import dataclass

from shared.scheduling.admission import refuse_full_decode, refuse_slow_decode
from shared.scheduling.cost_model import CostModel, CostProfile
from shared.scheduling.decode_forecast import DecodeForecast
from shared.scheduling.slo import Slo
from shared.scheduling.vocabulary import Refusal


@dataclass(frozen=True, slots=True)
class BatchNow:
    """Who decodes at this moment, or will for certain."""

    running: int
    context_tokens: int
    """Of all of them together."""
    missing_tokens: int = 0
    """Of their KV and of what was promised, what there is no room for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    prior_step_s: float
    """What the prior says of a step of the batch that it would join: learning starts from it."""
    refusal: Refusal | None


class DecodeJudge:
    """One for instances of one kind; `decode_time_s` is how long answers last until some ended."""

    def __init__(self, profile: CostProfile, decode_time_s: float) -> None:
        self._cost = CostModel(profile)
        self._forecast = DecodeForecast(decode_time_s)

    def judge(self, batch: BatchNow, num_tokens: int, allowed: Slo) -> Verdict:
        """A prompt of `num_tokens` would join it now. Changes nothing."""
        cost = self._cost
        tbt_s = cost.decode_step_s(batch.running + 1, batch.context_tokens + num_tokens)
        predicted, decode_time_s = Slo(tbt_s=tbt_s), self._forecast.decode_time_s
        refusal = refuse_slow_decode(predicted, allowed, decode_time_s)
        if refusal is None and batch.missing_tokens > 0:
            missing = batch.missing_tokens
            refusal = refuse_full_decode(missing, predicted, allowed, decode_time_s)
        return Verdict(tbt_s / cost.decode_scale, refusal)

    def learn(self, tbt_s: float, prior_step_s: float, decode_s: float) -> None:
        """An answer has ended; `prior_step_s` is its verdict's, 0 for one that was not judged."""
        self._cost.learn_step(tbt_s, prior_step_s)
        self._forecast.stayed(1, decode_s)
        self._forecast.ended(decode_s)
