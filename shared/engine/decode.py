"""Decodes a continuous batch from its own device cache. Never reads the pool while it steps.

A sequence's K and V lie contiguous in its cache and attention looks at one sequence at a time: with
linears that are independent of the number of rows, no sequence's bits depend on its company.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.engine.attention import DecodeAttention, decode_attention
from shared.engine.errors import EngineError
from shared.engine.kv_layout import KvLayout
from shared.engine.linear import decode_rows
from shared.engine.model import LlamaModel


@dataclass(slots=True)
class _Sequence:
    cache: torch.Tensor  # as decode_attention() made it
    capacity: int
    num_filled: int = 0  # leading positions whose K and V are there


class DecodeEngine:
    """For one thread at a time. Sequences join and leave between any two steps."""

    def __init__(
        self,
        model: LlamaModel,
        layout: KvLayout,
        capacity_tokens: int,
        *,
        attention: DecodeAttention | None = None,
    ) -> None:
        """`attention` replaces what the model's device would have."""
        self._model = model
        self._layout = layout
        self._sequences: dict[str, _Sequence] = {}
        self._attention = attention or decode_attention(model, layout, capacity_tokens)
        # Where a step's attention is made for speed, so are its products.
        is_exact = model.device.decode_attention == "each"
        self._rows = decode_rows(model.linear_mode, model.dtype, is_exact=is_exact)
        self.capacity_tokens = capacity_tokens
        self.used_tokens = 0

    def can_add(self, num_tokens: int) -> bool:
        return self.used_tokens + num_tokens <= self.capacity_tokens

    def add(self, seq_id: str, num_tokens_capacity: int) -> None:
        """Room for so many tokens of prompt and answer; `grow` gives more."""
        if seq_id in self._sequences:
            raise EngineError(f"{seq_id}: already in the batch")
        if not 1 <= num_tokens_capacity <= self._model.config.max_positions:
            raise EngineError(
                f"{seq_id}: {num_tokens_capacity} tokens, the context has 1-"
                f"{self._model.config.max_positions}"
            )
        if not self.can_add(num_tokens_capacity):
            raise EngineError(
                f"{seq_id}: {num_tokens_capacity} tokens do not fit, "
                f"{self.capacity_tokens - self.used_tokens} are free"
            )
        cache = self._attention.new_cache(num_tokens_capacity)
        self._sequences[seq_id] = _Sequence(cache, num_tokens_capacity)
        self.used_tokens += num_tokens_capacity

    @torch.inference_mode()
    def grow(self, seq_id: str, num_tokens_capacity: int) -> None:
        """Room for more tokens; what the sequence has stays, bit for bit."""
        sequence = self._sequence(seq_id)
        more = num_tokens_capacity - sequence.capacity
        if more < 0 or num_tokens_capacity > self._model.config.max_positions:
            raise EngineError(
                f"{seq_id}: room for {num_tokens_capacity} tokens, it has {sequence.capacity} and "
                f"the context {self._model.config.max_positions}"
            )
        if not self.can_add(more):
            raise EngineError(
                f"{seq_id}: {more} more tokens do not fit, "
                f"{self.capacity_tokens - self.used_tokens} are free"
            )
        sequence.cache = self._attention.grown(sequence.cache, num_tokens_capacity)
        sequence.capacity = num_tokens_capacity
        self.used_tokens += more

    @torch.inference_mode()
    def saved(self, seq_id: str) -> torch.Tensor:
        """A copy in host memory of all its K and V: [layer, 2, token, kv_head, head_dim].

        `load_block` takes it back in pieces: the sequence then goes on with the same bits.
        """
        sequence = self._sequence(seq_id)
        return self._attention.unload(sequence.cache, sequence.num_filled)

    @torch.inference_mode()
    def load_block(
        self, seq_id: str, pool: torch.Tensor, slot: int, start: int, num_tokens: int
    ) -> None:
        """Copies the first `num_tokens` of a block to positions `start`... of the sequence.

        Blocks come in order: a gap would let the sequence attend to what was never written.
        """
        sequence = self._sequence(seq_id)
        end = start + num_tokens
        if not 1 <= num_tokens <= self._layout.block_tokens or end > sequence.capacity:
            raise EngineError(f"{seq_id}: no room for {num_tokens} tokens at position {start}")
        if start > sequence.num_filled:
            raise EngineError(
                f"{seq_id}: block at position {start}, but only {sequence.num_filled} tokens "
                "before it are loaded"
            )
        self._attention.load(sequence.cache, pool[slot, :, :, :num_tokens], start)
        sequence.num_filled = max(sequence.num_filled, end)

    @torch.inference_mode()
    def step(self, batch: Sequence[tuple[str, int, int]]) -> torch.Tensor:
        """(seq_id, token, position) of each sequence to logits [B, vocab] of what follows.

        Appends each token's K and V at its position.
        """
        if not batch:
            raise EngineError("batch: empty")
        if len({seq_id for seq_id, _, _ in batch}) < len(batch):
            raise EngineError("batch: a sequence is in it twice")
        for seq_id, token, position in batch:
            self._check(seq_id, token, position)
        return self._run_step(batch)

    def _run_step(self, batch: Sequence[tuple[str, int, int]]) -> torch.Tensor:
        group = self._rows.group or len(batch)
        return torch.cat(
            [
                self._step_group(batch[first : first + group])
                for first in range(0, len(batch), group)
            ]
        )

    def remove(self, seq_id: str) -> None:
        sequence = self._sequence(seq_id)
        self._attention.free(sequence.cache)
        self.used_tokens -= sequence.capacity
        del self._sequences[seq_id]

    def _step_group(self, batch: Sequence[tuple[str, int, int]]) -> torch.Tensor:
        num_padding = max(0, self._rows.minimum - len(batch))
        padded = [*batch, *[batch[-1]] * num_padding]
        device = self._model.device.torch_device
        positions = torch.tensor([position for _, _, position in padded], device=device)
        cos, sin = self._model.rotary(positions)
        tokens = torch.tensor([token for _, token, _ in padded], device=device)
        hidden = self._model.embed(tokens)
        sequences = [(self._sequence(seq_id), position) for seq_id, _, position in batch]
        self._attention.begin(
            [sequence.cache for sequence, _ in sequences], [at for _, at in sequences]
        )
        for index, layer in enumerate(self._model.layers):
            attended = self._attention.attend(index, *layer.project(hidden, cos, sin))
            hidden = layer.finish(hidden, attended)
        for sequence, position in sequences:
            sequence.num_filled = position + 1
        return self._model.logits(hidden)[: len(batch)].cpu()

    def _check(self, seq_id: str, token: int, position: int) -> None:
        sequence = self._sequence(seq_id)
        if not 0 <= token < self._model.config.vocab_size:
            raise EngineError(f"{seq_id}: token {token} is outside of the vocabulary")
        if position >= sequence.capacity:
            raise EngineError(f"{seq_id}: position {position} of a room of {sequence.capacity}")
        if not 0 <= position <= sequence.num_filled:
            raise EngineError(
                f"{seq_id}: position {position}, but only {sequence.num_filled} tokens are there"
            )

    def _sequence(self, seq_id: str) -> _Sequence:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            raise EngineError(f"{seq_id}: not in the batch")
        return sequence
