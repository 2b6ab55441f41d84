"""From a client's body to the sampling that the instances get. Pure."""

from services.gateway.openai_schema import ChatBody, CompletionBody
from shared.messages.common import Sampling


def sampling_of(body: ChatBody | CompletionBody, max_tokens: int, seed: int) -> Sampling:
    """A value that the client left out is OpenAI's default."""
    repetition_penalty = 1.0 if body.repetition_penalty is None else body.repetition_penalty
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=repetition_penalty,
        logit_bias=body.biases,
        top_logprobs=body.num_top_logprobs,
        seed=seed,
        ignore_eos=body.ignore_eos,
    )
