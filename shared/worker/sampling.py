"""From the wire's sampling to the engine's, and when an answer is finished."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shared.engine.sampler import Sampled
from shared.engine.sampling_params import SamplingParams
from shared.messages.common import PackedTokens, Sampling
from shared.messages.tokens import FinishReason, TokenLogprobs


def params_of(sampling: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=tuple(sampling.logit_bias),
        top_logprobs=sampling.top_logprobs,
    )


def seen_tokens(sampling: Sampling, prompt_tokens: npt.NDArray[np.int32]) -> PackedTokens:
    """What decode must know of the prompt to choose tokens as prefill would."""
    if sampling.repetition_penalty == 1.0:
        return b""
    return np.unique(prompt_tokens).astype("<i4").tobytes()


def unpacked(tokens: PackedTokens) -> list[int]:
    """Packed token ids as plain ints."""
    ids: list[int] = np.frombuffer(tokens, dtype="<i4").tolist()
    return ids


def wire_logprobs(sampled: Iterable[Sampled]) -> list[TokenLogprobs]:
    """Of the tokens whose request asks for them."""
    return [
        TokenLogprobs(logprob=one.logprobs.logprob, top=list(one.logprobs.top))
        for one in sampled
        if one.logprobs is not None
    ]


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
