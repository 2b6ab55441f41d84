"""Log probabilities of a prompt's own tokens: each from the row of the token before it.

Of the very pass that computes the KV, and of the model's own distribution.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.errors import Cancelled
from shared.engine.token_order import largest

ROWS = 32
"""Whose logits are there at once: a whole chunk's would be 50 MB with a small vocabulary."""

Logits = Callable[[torch.Tensor], torch.Tensor]
"""From hidden rows to float32 logits [rows, vocab]."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Of some tokens in order: [tokens] and, of the likely ones at each place, [tokens, top]."""

    logprobs: npt.NDArray[np.float32]
    top_tokens: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    seconds: float
    """What it took beside the pass."""


@dataclass(frozen=True, slots=True)
class ScoreWish:
    """What is asked of one chunk."""

    targets: npt.NDArray[np.int32]
    """The tokens that follow its rows, from its first row on; not more than it has rows."""
    num_top: int


def score_rows(
    hidden: torch.Tensor,
    wish: ScoreWish,
    logits_of: Logits,
    *,
    min_rows: int = 1,
    is_cancelled: Callable[[], bool],
) -> PromptScores:
    """`hidden` are the rows of the chunk after the last layer. Raises Cancelled between slices."""
    if hidden.is_cuda:
        torch.cuda.synchronize(hidden.device)  # what the layers take is not counted here
    start_s = time.monotonic()
    targets = torch.from_numpy(wish.targets.astype(np.int64)).to(hidden.device)
    logprobs: list[torch.Tensor] = []
    top_tokens: list[npt.NDArray[np.int32]] = []
    top_logprobs: list[npt.NDArray[np.float32]] = []
    for first in range(0, len(targets), ROWS):
        if is_cancelled():
            raise Cancelled
        own = targets[first : first + ROWS]
        rows = hidden[first : first + len(own)]
        if len(rows) < min_rows:
            rows = rows.expand(min_rows, -1)
        logits = logits_of(rows)[: len(own)]
        normaliser = logits.logsumexp(dim=1)
        logprobs.append(logits.gather(1, own[:, None])[:, 0] - normaliser)
        tokens, values = _likeliest(logits, wish.num_top)
        top_tokens.append(tokens)
        top_logprobs.append(values - normaliser.cpu().numpy()[:, None])
    return PromptScores(
        torch.cat(logprobs).cpu().numpy(),
        np.concatenate(top_tokens),
        np.concatenate(top_logprobs),
        time.monotonic() - start_s,
    )


def _likeliest(
    logits: torch.Tensor, num_top: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Tokens and logits [rows, num_top], in the order of `token_order`."""
    num_rows, vocab_size = logits.shape
    if not num_top:
        return np.empty((num_rows, 0), np.int32), np.empty((num_rows, 0), np.float32)
    found = logits.topk(min(num_top + 1, vocab_size), dim=1)
    values, tokens = found.values.cpu().numpy(), found.indices.cpu().numpy()
    # Equal ones come in any order, and of those at the border any may be left out.
    order = np.lexsort((tokens, -values), axis=1)[:, :num_top]
    is_open = values[:, num_top - 1] == values[:, -1] if values.shape[1] > num_top else None
    tokens = np.take_along_axis(tokens, order, axis=1).astype(np.int32)
    values = np.take_along_axis(values, order, axis=1)
    for row in [] if is_open is None else np.flatnonzero(is_open):
        tokens[row] = largest(logits[row].cpu().numpy(), num_top)
    return tokens, values
