"""The same layers over plain contiguous K and V: what paging and the fixed grid are held against.

Made for speed alone: no pool, no blocks, no padding, no hooks, no promise about bits.
"""

import torch
import torch.nn.functional as F

from shared.engine.attention import prompt_attention
from shared.engine.loaded_model import LoadedModel


class FreePrefill:
    """Prompts in chunks that lie anywhere, with the engine's own attention.

    Each layer keeps its K and V, so that nothing is copied to blocks and read back from them.
    """

    def __init__(self, loaded: LoadedModel, chunk_tokens: int) -> None:
        self._model = model = loaded.model
        self._chunk_tokens = chunk_tokens
        self._attentions = [
            prompt_attention(model, loaded.layout, chunk_tokens) for _ in model.layers
        ]

    @torch.inference_mode()
    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits after the prompt."""
        model = self._model
        hidden = model.embed(tokens[:0])
        for start in range(0, len(tokens), self._chunk_tokens):
            end = min(start + self._chunk_tokens, len(tokens))
            cos, sin = model.rotary(torch.arange(start, end))
            hidden = model.embed(tokens[start:end])
            layers = zip(model.layers, self._attentions, strict=True)
            for index, (layer, attention) in enumerate(layers):
                query, key, value = layer.project(hidden, cos, sin)
                attention.write(key, value, start)
                hidden = layer.finish(hidden, attention.attend(query, start, end, index))
        return model.logits(hidden[-1:].expand(2, -1))[0]


class ContiguousDecode:
    """A batch of equal lengths in one tensor: no sequence joins or leaves."""

    def __init__(self, loaded: LoadedModel, *, context: int, batch: int, room: int) -> None:
        layout = loaded.layout
        self._model = loaded.model
        self._position = context
        shape = (
            layout.num_layers, 2, batch, layout.num_kv_heads, context + room, layout.head_dim
        )  # fmt: skip
        self._cache = torch.randn(shape, dtype=layout.torch_dtype)

    def fill(self, index: int, kv: torch.Tensor) -> None:
        """One sequence's context as [layer, 2, token, kv_head, head_dim]; else it is random."""
        self._cache[:, :, index, :, : kv.shape[2]] = kv.transpose(2, 3)

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Greedy tokens that follow."""
        batch, position = len(tokens), self._position
        cos, sin = self._model.rotary(torch.full((batch,), position))
        hidden = self._model.embed(tokens)
        for index, layer in enumerate(self._model.layers):
            query, key, value = layer.project(hidden, cos, sin)
            keys, values = self._cache[index]
            keys[:, :, position] = key
            values[:, :, position] = value
            grouped = query.view(batch, keys.shape[1], -1, query.shape[-1])
            attended = F.scaled_dot_product_attention(
                grouped, keys[:, :, : position + 1], values[:, :, : position + 1]
            )
            hidden = layer.finish(hidden, attended.reshape(batch, -1))
        self._position += 1
        return self._model.logits(hidden).argmax(-1)
