"""The same layers over plain contiguous K and V: what paging and the fixed grid are held against.

Made for speed alone: no pool, no blocks, no padding, no hooks, no promise about bits.
"""

import torch
import torch.nn.functional as F

from shared.engine.loaded_model import LoadedModel


@torch.inference_mode()
def prefill_freely(loaded: LoadedModel, tokens: torch.Tensor, chunk_tokens: int) -> torch.Tensor:
    """Logits after the prompt, in chunks of that size."""
    model, layout = loaded.model, loaded.layout
    shape = (layout.num_layers, 2, layout.num_kv_heads, len(tokens), layout.head_dim)
    cache = torch.empty(shape, dtype=layout.torch_dtype)
    hidden = model.embed(tokens[:0])
    for start in range(0, len(tokens), chunk_tokens):
        end = min(start + chunk_tokens, len(tokens))
        positions = torch.arange(start, end)
        cos, sin = model.rotary(positions)
        hidden = model.embed(tokens[start:end])
        mask = torch.full((end - start, end), float("-inf"), dtype=layout.torch_dtype)
        mask.triu_(diagonal=start + 1)
        for index, layer in enumerate(model.layers):
            query, key, value = layer.project(hidden, cos, sin)
            keys, values = cache[index]
            keys[:, start:end] = key.transpose(0, 1)
            values[:, start:end] = value.transpose(0, 1)
            attended = F.scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                keys[None, :, :end],
                values[None, :, :end],
                attn_mask=mask,
                enable_gqa=True,
            )
            hidden = layer.finish(hidden, attended[0].transpose(0, 1).flatten(1))
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
