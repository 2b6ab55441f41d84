"""What a request that asks for its prompt's log probabilities wants of each chunk, and their way to
its gateway: piece by piece while the next chunk computes, each heard before the next one goes.
"""

import asyncio

import numpy as np
import numpy.typing as npt

from shared.engine.prompt_scores import PromptScores, ScoreWish
from shared.messages.tokens import MAX_SCORED, PromptLogprobs
from shared.worker.grid import Chunk
from shared.worker.token_sender import TokenSender


def wish_for(tokens: npt.NDArray[np.int32], chunk: Chunk, num_top: int | None) -> ScoreWish | None:
    """Each row scores the token after it; after the prompt's last one there is none."""
    if num_top is None:
        return None
    targets = tokens[chunk.start + 1 : chunk.end + 1]
    return ScoreWish(targets, num_top) if len(targets) else None


def pieces_of(first: int, scores: PromptScores) -> list[PromptLogprobs]:
    """Scores of the tokens from `first` on as the wire has them, none of them too large."""
    return [
        PromptLogprobs(
            first=first + start,
            logprobs=scores.logprobs[start : start + MAX_SCORED].astype("<f4").tobytes(),
            num_top=scores.top_tokens.shape[1],
            top_tokens=scores.top_tokens[start : start + MAX_SCORED].astype("<i4").tobytes(),
            top_logprobs=scores.top_logprobs[start : start + MAX_SCORED].astype("<f4").tobytes(),
        )
        for start in range(0, len(scores.logprobs), MAX_SCORED)
    ]


class ScoreSender:
    """One piece is on its way at a time: who comes with the next one waits until it was heard."""

    def __init__(self, sender: TokenSender) -> None:
        self._sender = sender
        self._under_way: asyncio.Future[None] | None = None

    async def send(self, first: int, scores: PromptScores) -> None:
        """Returns when all but the last piece was heard; raises ServiceError when one was not."""
        for piece in pieces_of(first, scores):
            await self.drain()
            self._under_way = asyncio.ensure_future(self._sender.send_prompt(piece))

    async def drain(self) -> None:
        """Until the gateway has all that was sent."""
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    async def close(self) -> None:
        """What is still under way is not wanted any more."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
            self._under_way = None
