"""From the wire's sampling to the engine's, and when an answer is finished."""

from shared.engine.sampler import SamplingParams
from shared.messages.common import Sampling
from shared.messages.tokens import FinishReason


def params_of(sampling: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
    )


def finish_reason(
    sampling: Sampling,
    eos_token_ids: tuple[int, ...],
    *,
    token: int,
    num_given: int,
    num_tokens: int,
    context_tokens: int,
) -> FinishReason | None:
    """Whether the answer ends with `token`, the last of `num_given` after the prompt."""
    if token in eos_token_ids and not sampling.ignore_eos:
        return "stop"
    if num_given >= sampling.max_tokens or num_tokens + num_given >= context_tokens:
        return "length"
    return None
