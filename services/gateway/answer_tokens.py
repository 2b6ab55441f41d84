"""Puts the tokens of an answer in order. Pure; knows nothing of attempts' causes or of time."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.tokens import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens that can be given now, and their log probabilities where those were sent."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class AnswerTokens:
    """Owns the tokens given so far and what came ahead of its turn in the present attempt."""

    def __init__(self, max_tokens: int, eos_token_ids: frozenset[int]) -> None:
        self._max_tokens = max_tokens
        self._eos_token_ids = eos_token_ids
        self._ahead: dict[int, tuple[int, TokenLogprobs | None]] = {}
        self._end: tuple[int, FinishReason] | None = None
        self.given: list[int] = []

    def begin_attempt(self) -> None:
        """Forget what an earlier attempt sent ahead of its turn."""
        self._ahead.clear()
        self._end = None

    def take(
        self, index: int, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()
    ) -> NewTokens:
        """The tokens that can be given now that these came; repeats change nothing."""
        known = logprobs if len(logprobs) == len(tokens) else [None] * len(tokens)
        for at, sent in enumerate(zip(tokens, known, strict=True), start=index):
            if len(self.given) <= at < self._max_tokens:
                self._ahead.setdefault(at, sent)
        new: list[tuple[int, TokenLogprobs | None]] = []
        while self.natural_end is None and len(self.given) in self._ahead:
            new.append(self._ahead.pop(len(self.given)))
            self.given.append(new[-1][0])
        return NewTokens(
            tuple(token for token, _ in new), tuple(one for _, one in new if one is not None)
        )

    def end_at(self, num_tokens: int, reason: FinishReason) -> None:
        """The sender says that the answer has this many tokens."""
        self._end = (num_tokens, reason)

    @property
    def natural_end(self) -> FinishReason | None:
        """Why the tokens given are a whole answer, whatever else comes; None: they may not be.

        Without a token only the sender knows.
        """
        if not self.given:
            return None
        if self.given[-1] in self._eos_token_ids:
            return "stop"
        return "length" if len(self.given) >= self._max_tokens else None

    @property
    def finished(self) -> FinishReason | None:
        """The reason once the sender's last word and all tokens before it are here."""
        if self._end is None:
            return None
        num_tokens, reason = self._end
        if len(self.given) >= num_tokens:
            return reason
        return self.natural_end

    @property
    def is_waiting_for_lost(self) -> bool:
        """Something later came, so what misses was sent before it: late or lost."""
        return bool(self._ahead) or self._end is not None or self.natural_end is not None
