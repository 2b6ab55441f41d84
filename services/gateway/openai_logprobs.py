"""Log probabilities as OpenAI writes them, for chat and for plain completions."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shared.checkpoint.tokenizer import TextTokenizer
from shared.messages.tokens import PromptLogprobs, TokenLogprobs

# JSON has no infinity.
LEAST_LOGPROB = -9999.0
MAX_SKIPPED = 64
"""Characters of a prompt in a row that no token stands for."""


class Logprobs:
    """How one kind of answer writes the log probabilities of its tokens."""

    def write(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        raise NotImplementedError

    def write_prompt(
        self, tokens: Sequence[int], text: str, pieces: Sequence[PromptLogprobs]
    ) -> dict[str, Any]:
        """Of a prompt, which the answer shows as `text`; its first token follows nothing."""
        raise NotImplementedError

    @staticmethod
    def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Of tokens that follow one another; None when there are none."""
        if len(parts) < 2:
            return parts[0] if parts else None
        return {name: [one for part in parts for one in part[name]] for name in parts[0]}


class ChatLogprobs(Logprobs):
    """A list with one entry for each token. An answer of a chat never starts with its prompt."""

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


class CompletionLogprobs(Logprobs):
    """Parallel lists. Owns how much text the tokens so far are, for the offsets."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self._names: dict[int, str] = {}

    def write_prompt(
        self, tokens: Sequence[int], text: str, pieces: Sequence[PromptLogprobs]
    ) -> dict[str, Any]:
        logprobs: list[float | None] = [None]
        top: list[dict[str, float] | None] = [None]
        for token, one in zip(tokens[1:], _each(pieces), strict=True):
            logprobs.append(max(one.logprob, LEAST_LOGPROB))
            top.append(self._named(token, one))
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": self._offsets_in(text, tokens),
        }

    def write(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        top: list[dict[str, float]] = []
        offsets: list[int] = []
        for token, one in zip(tokens, logprobs, strict=True):
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(self._tokenizer.shown_alone(token)))
            top.append(self._named(token, one))
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [max(one.logprob, LEAST_LOGPROB) for one in logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _offsets_in(self, text: str, tokens: Sequence[int]) -> list[int]:
        """Where each token begins in `text`; half a character begins where the whole one does."""
        offsets: list[int] = []
        end = 0
        for token in tokens:
            start, end = self._span(text, end, token)
            offsets.append(start)
        self._utf8.reset()
        self._offset = len(text)
        return offsets

    def _span(self, text: str, at: int, token: int) -> tuple[int, int]:
        """What of `text` this token is, from `at` on.

        The text may lack special tokens and a first space, and have what no token stands for.
        """
        state = self._utf8.getstate()
        own = self._utf8.decode(self._tokenizer.alone(token))
        for shown in (own, own.lstrip(" ")) if at == 0 else (own,):
            if text.startswith(shown, at):
                return at, at + len(shown)
        self._utf8.setstate(state)
        core = self._utf8.decode(self._tokenizer.shown_alone(token)).strip("\ufffd")
        found = text.find(core, at, at + len(core) + MAX_SKIPPED)
        return (found, found + len(core)) if found >= 0 else (at, at)

    def _named(self, token: int, one: TokenLogprobs) -> dict[str, float]:
        """The likely tokens, and always the token itself. Of equal names the likeliest counts."""
        named: dict[str, float] = {}
        for likely, logprob in (*one.top, (token, one.logprob)):
            named.setdefault(self._name(likely), max(logprob, LEAST_LOGPROB))
        return named

    def _name(self, token: int) -> str:
        name = self._names.get(token)
        if name is None:
            name = self._names[token] = self._new_name(token)
        return name

    def _new_name(self, token: int) -> str:
        """Part of a character reads `bytes:\\xe2`, so that different tokens keep their names."""
        raw = self._tokenizer.alone(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _each(pieces: Sequence[PromptLogprobs]) -> Iterator[TokenLogprobs]:
    """Unpacked one by one: all at once would be many times as large."""
    for piece in pieces:
        shape = (piece.num_tokens, piece.num_top)
        logprobs = np.frombuffer(piece.logprobs, "<f4")
        tokens = np.frombuffer(piece.top_tokens, "<i4").reshape(shape)
        values = np.frombuffer(piece.top_logprobs, "<f4").reshape(shape)
        for row, logprob in enumerate(logprobs.tolist()):
            top = list(zip(tokens[row].tolist(), values[row].tolist(), strict=True))
            yield TokenLogprobs.model_construct(logprob=logprob, top=top)
