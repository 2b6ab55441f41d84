"""Compares our kernels with torch's on random numbers: a compiler's mistake must not go unseen."""

import torch
import torch.nn.functional as F

from shared.checkpoint.model_config import ModelConfig
from shared.engine.kernels import Kernels, packed_shape
from shared.engine.panels import to_panels

_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
_ROWS, _PAST, _WINDOW = 53, 112, 70
"""The last tile of keys is cut short, at a number that no width of instructions divides."""


def agrees_with_torch(kernels: Kernels, config: ModelConfig, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    rows, weight, bias = random(_ROWS, 1030), random(100, 1030) / 32, random(100)
    gate_and_up = random(2 * 64, 1030) / 32
    gate_up, scale = random(_ROWS, 2 * 40), random(40)
    residual = random(_ROWS, 100)
    gate, up = gate_up.float().chunk(2, dim=-1)
    wide_gate, wide_up = F.linear(rows.float(), gate_and_up.float()).chunk(2, dim=-1)
    pairs = [
        (
            kernels.linear(rows, to_panels(weight), 100, bias, residual),
            F.linear(rows.float(), weight.float(), bias.float()) + residual.float(),
        ),
        (kernels.silu_up(gate_up), F.silu(gate) * up),
        (kernels.linear_silu_up(rows, to_panels(gate_and_up), 128), F.silu(wide_gate) * wide_up),
        (
            kernels.rms_norm(gate_up[:, :40], scale, 1e-5),
            F.rms_norm(gate_up[:, :40].float(), (40,), scale.float(), 1e-5),
        ),
    ]
    query = random(_ROWS, config.num_heads, config.head_dim)
    keys = random(_PAST + _ROWS, config.num_kv_heads, config.head_dim)
    values = random(_PAST + _ROWS, config.num_kv_heads, config.head_dim)
    shape = packed_shape((config.num_kv_heads,), len(keys), config.head_dim)
    packed = torch.zeros(shape, dtype=dtype)
    kernels.pack(keys, values, packed, 0)
    for window in (None, _WINDOW):
        expected = _attended(query.float(), keys.float(), values.float(), window)
        pairs.append((kernels.attend_run(query, packed, _PAST, window), expected))
    tolerance = _TOLERANCES[dtype]
    return all(
        torch.allclose(ours.float(), theirs, rtol=tolerance, atol=tolerance)
        for ours, theirs in pairs
    )


def _attended(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> torch.Tensor:
    visible = torch.ones(len(query), len(keys), dtype=torch.bool).tril(len(keys) - len(query))
    if window is not None:
        visible = visible.triu(len(keys) - len(query) + 1 - window)
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=visible,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1).flatten(1)
