"""Engines whose passes take the times of a profile instead of computing: for hardware that is not
there, and to hold predictions and the simulator against times that are known exactly.

KV is written where the real engines write it, of tokens and positions, so that a wrong block shows;
blocks are loaded and copied as ever. Only the arithmetic is replaced, by waiting.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.errors import Cancelled
from shared.engine.prefill import PrefillEngine

NUM_SPECIAL = 3


class PassTimes(Protocol):
    """How long passes take, in seconds."""

    def chunk_s(self, num_tokens: int, prefix_tokens: int, *, is_last: bool) -> float:
        """Of a prompt's tokens `prefix_tokens` ... `num_tokens`; its last chunk gives token 0."""

    def step_s(self, batch: int, context_tokens: float) -> float:
        """Of a batch whose sequences have so many tokens together."""


class TimedPrefillEngine(PrefillEngine):
    def __init__(self, times: PassTimes, *arguments: Any, **options: Any) -> None:
        """The rest is what a PrefillEngine takes."""
        super().__init__(*arguments, **options)
        self._times = times

    def _run_layers(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        on_layer: Callable[[int], None] | None,
        is_cancelled: Callable[[], bool],
        want_hidden: bool,
    ) -> torch.Tensor | None:
        began_s, end = time.monotonic(), start + len(tokens)
        seconds = self._times.chunk_s(end, start, is_last=want_hidden)
        config = self._model.config
        marks = torch.from_numpy(tokens.astype(np.float32)) + torch.arange(start, end)
        for layer in range(config.num_layers):
            if is_cancelled():
                raise Cancelled
            rows = (marks + layer).to(self._model.dtype)[:, None, None]
            rows = rows.expand(-1, config.num_kv_heads, config.head_dim)
            self._kv.put(layer, rows, -rows)
            wait_until(began_s + seconds * (layer + 1) / config.num_layers)
            self._report(on_layer, self._kv.arrived())
        if not want_hidden:
            return None
        # The head of the model on the prompt's last token alone: token 0 is a function of that.
        last = torch.from_numpy(tokens[-1:].astype(np.int64))
        return self._model.embed(last).expand(len(tokens), -1)


class TimedDecodeEngine(DecodeEngine):
    def __init__(self, times: PassTimes, *arguments: Any, **options: Any) -> None:
        """The rest is what a DecodeEngine takes."""
        super().__init__(*arguments, **options)
        self._times = times

    def _run_step(self, batch: Sequence[tuple[str, int, int]]) -> torch.Tensor:
        began_s = time.monotonic()
        logits = torch.zeros(len(batch), self._model.config.vocab_size)
        for row, (seq_id, token, position) in enumerate(batch):
            self._sequence(seq_id).num_filled = position + 1
            logits[row, next_token(token, position, logits.shape[1])] = 1.0
        context_tokens = sum(position for _, _, position in batch)
        wait_until(began_s + self._times.step_s(len(batch), context_tokens))
        return logits


def next_token(token: int, position: int, vocab_size: int) -> int:
    """Of an answer: none of the first ids, which may end it."""
    return NUM_SPECIAL + (31 * token + position) % (vocab_size - NUM_SPECIAL)


def wait_until(end_s: float) -> None:
    """Blocks this thread until then, on the clock of time.monotonic."""
    time.sleep(max(end_s - time.monotonic(), 0.0))
