"""Bias and penalties of one answer. Owns the counts of the tokens given, and nothing random.

The state is a function of the prompt and of the answer so far, so that an instance which takes
an answer over rebuilds it from those tokens.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shared.engine.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32]


class LogitChanges:
    """Presence and frequency count the answer's tokens; repetition also sees the prompt's."""

    def __init__(
        self, params: SamplingParams, prompt_tokens: Iterable[int], answer: Iterable[int]
    ) -> None:
        self._params = params
        self._bias_tokens = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        self._counts: Counter[int] = Counter(answer)
        self._seen: set[int] = set()
        if params.repetition_penalty != 1.0:
            self._seen.update(prompt_tokens)
            self._seen.update(self._counts)

    def note(self, token: int) -> None:
        """It was given to the client."""
        self._counts[token] += 1
        if self._params.repetition_penalty != 1.0:
            self._seen.add(token)

    def applied(self, logits: Logits) -> Logits:
        """Changed logits, in the order of vLLM: bias, repetition, frequency, presence."""
        params = self._params
        changed = logits.copy()
        if len(self._bias_tokens):
            changed[self._bias_tokens] += self._bias
        if self._seen:
            seen = np.fromiter(self._seen, dtype=np.int64, count=len(self._seen))
            picked = changed[seen]
            penalty = np.float32(params.repetition_penalty)
            changed[seen] = np.where(picked > 0, picked / penalty, picked * penalty)
        if self._counts and (params.frequency_penalty or params.presence_penalty):
            num = len(self._counts)
            tokens = np.fromiter(self._counts.keys(), dtype=np.int64, count=num)
            counts = np.fromiter(self._counts.values(), dtype=np.float32, count=num)
            changed[tokens] -= np.float32(params.frequency_penalty) * counts
            changed[tokens] -= np.float32(params.presence_penalty)
        return changed
