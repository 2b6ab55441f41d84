"""Collects the log probabilities of a prompt that one attempt sends. Pure."""

from shared.messages.tokens import PromptLogprobs


class PromptPieces:
    """Owns what the present attempt has sent of `num_tokens` tokens; the first one has none."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._by_place: dict[int, PromptLogprobs] = {}
        self.is_given = False
        """They are with the client: no later attempt need send them."""

    def begin_attempt(self) -> None:
        """Another instance computes anew; pieces of two passes are never mixed."""
        self._by_place.clear()

    def take(self, piece: PromptLogprobs) -> None:
        """The last one counts: one said again is the same, or of a pass after one that was void."""
        if not self.is_given:
            self._by_place[piece.first] = piece

    def whole(self) -> tuple[PromptLogprobs, ...] | None:
        """All pieces in order; None while some are missing."""
        pieces = [self._by_place[first] for first in sorted(self._by_place)]
        end = 1
        for piece in pieces:
            if piece.first != end:
                return None
            end += piece.num_tokens
        return tuple(pieces) if end == self._num_tokens else None
