"""Log probabilities as OpenAI writes them, for chat and for plain completions."""

import codecs
from collections.abc import Sequence
from typing import Any

from shared.checkpoint.tokenizer import TextTokenizer
from shared.messages.tokens import TokenLogprobs

# JSON has no infinity.
LEAST_LOGPROB = -9999.0


class ChatLogprobs:
    """A list with one entry for each token."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def write(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        content = [
            {
                **self._entry(token, one.logprob),
                "top_logprobs": [self._entry(likely, logprob) for likely, logprob in one.top],
            }
            for token, one in zip(tokens, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.alone(token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(raw),
        }


class CompletionLogprobs:
    """Parallel lists. Owns how much text the tokens so far are, for the offsets."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        top: list[dict[str, float]] = []
        offsets: list[int] = []
        for token, one in zip(tokens, logprobs, strict=True):
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(self._tokenizer.shown_alone(token)))
            # The chosen token is always named, also when it is not among the likely ones.
            named = {self._name(likely): max(lp, LEAST_LOGPROB) for likely, lp in one.top}
            named.setdefault(self._name(token), max(one.logprob, LEAST_LOGPROB))
            top.append(named)
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [max(one.logprob, LEAST_LOGPROB) for one in logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """Part of a character reads `bytes:\\xe2`, so that different tokens keep their names."""
        raw = self._tokenizer.alone(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
