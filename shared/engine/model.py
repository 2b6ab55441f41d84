"""The Llama-shaped decoder, one layer at a time. Keeps no sequence state and no KV.

Attention lies between project() and finish(), with whoever owns the KV.
"""

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F

from shared.checkpoint.model_config import ModelConfig
from shared.engine.device import CPU, ComputeDevice
from shared.engine.kernels import Kernels
from shared.engine.linear import AnyLinear, Linear, LinearMode, PanelLinear
from shared.engine.model_weights import (
    EMBEDDINGS,
    FINAL_NORM,
    LM_HEAD,
    layer_shapes,
    layer_tensor,
)
from shared.engine.rotary import RotaryTable
from shared.engine.weights_file import MappedWeights


class Projection(NamedTuple):
    query: torch.Tensor  # [rows, heads, head_dim]
    key: torch.Tensor  # [rows, kv_heads, head_dim]
    value: torch.Tensor


class DecoderLayer:
    """One layer's weights and all of its arithmetic but attention."""

    def __init__(
        self,
        config: ModelConfig,
        weights: MappedWeights,
        layer: int,
        linear_mode: LinearMode,
        kernels: Kernels | None,
        device: ComputeDevice,
    ) -> None:
        def tensor(part: str) -> torch.Tensor:
            # Small tensors are copied, so that the mapping's pages can be given back.
            return weights.tensor(layer_tensor(layer, part)).to(device.torch_device, copy=True)

        def linear(part: str, bias: torch.Tensor | None = None) -> AnyLinear:
            weight = weights.tensor(layer_tensor(layer, part)).to(device.torch_device)
            return _linear(weight, shapes[part][0], bias, linear_mode, kernels)

        shapes = layer_shapes(config)
        self._config = config
        self._kernels = kernels
        self._input_norm = tensor("input_norm")
        self._mlp_norm = tensor("mlp_norm")
        self._query_norm = tensor("query_norm") if config.has_qk_norm else None
        self._key_norm = tensor("key_norm") if config.has_qk_norm else None
        self._qkv = linear("qkv", tensor("qkv_bias") if config.has_qkv_bias else None)
        self._attention_out = linear("attention_out")
        self._gate_up = linear("gate_up")
        self._down = linear("down")

    def project(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Projection:
        config = self._config
        rows = self._qkv(self._norm(hidden, self._input_norm))
        heads = rows.view(rows.shape[0], -1, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        query, key, value = torch.split(heads, sizes, dim=1)
        if self._query_norm is not None and self._key_norm is not None:
            query = self._norm(query, self._query_norm)
            key = self._norm(key, self._key_norm)
            heads = torch.cat((query, key, value), dim=1)
            query, key, value = torch.split(heads, sizes, dim=1)
        if self._kernels is None:
            return Projection(_rotated(query, cos, sin), _rotated(key, cos, sin), value)
        self._kernels.rotate(heads, cos, sin, config.num_heads + config.num_kv_heads)
        return Projection(query, key, value)

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of the layer, from attention's output [rows, heads * head_dim]."""
        hidden = self._attention_out(attended, hidden)
        normed = self._norm(hidden, self._mlp_norm)
        if isinstance(self._gate_up, PanelLinear):
            return self._down(self._gate_up.silu_up(normed), hidden)
        gate, up = self._gate_up(normed).chunk(2, dim=-1)
        return self._down(F.silu(gate) * up, hidden)

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _rms_norm(rows, weight, self._config.rms_eps, self._kernels)


class LlamaModel:
    """`weights` hold their matrices in panels exactly when there are `kernels`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: MappedWeights,
        linear_mode: LinearMode,
        kernels: Kernels | None = None,
        device: ComputeDevice = CPU,
    ) -> None:
        self.config = config
        self.device = device
        self.linear_mode = linear_mode
        self.kernels = kernels
        # On a CPU it stays mapped: only the rows of tokens in use become resident.
        self._embeddings = weights.tensor(EMBEDDINGS).to(device.torch_device)
        self.dtype = self._embeddings.dtype
        self.layers = [
            DecoderLayer(config, weights, layer, linear_mode, kernels, device)
            for layer in range(config.num_layers)
        ]
        self._final_norm = weights.tensor(FINAL_NORM).to(device.torch_device, copy=True)
        is_shared = config.tied_embeddings and kernels is None
        head = self._embeddings
        if not is_shared:
            head = weights.tensor(LM_HEAD).to(device.torch_device)
        self._lm_head = _linear(head, config.vocab_size, None, linear_mode, kernels)
        self._rotary = RotaryTable(config, self.dtype, device.torch_device)
        if linear_mode in ("onednn-prepacked", "cublas"):
            weights.forget_pages()

    def with_layers(self, num_layers: int) -> "LlamaModel":
        """The same model cut after its first layers; shares their weights."""
        cut = copy.copy(self)
        cut.layers = self.layers[:num_layers]
        cut.config = replace(self.config, num_layers=len(cut.layers))
        return cut

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self._embeddings)

    def rotary_fingerprint(self) -> str:
        """Of the table that `rotary` reads, on a CPU."""
        return self._rotary.fingerprint()

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._rotary.at(positions)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [rows, vocab]; give it two rows at least (see linear)."""
        normed = _rms_norm(hidden, self._final_norm, self.config.rms_eps, self.kernels)
        return self._lm_head(normed).float()


def _linear(
    weight: torch.Tensor,
    num_outputs: int,
    bias: torch.Tensor | None,
    linear_mode: LinearMode,
    kernels: Kernels | None,
) -> AnyLinear:
    if kernels is None:
        return Linear(weight, bias, linear_mode)
    return PanelLinear(kernels, weight, num_outputs, bias)


def _rms_norm(
    rows: torch.Tensor, weight: torch.Tensor, eps: float, kernels: Kernels | None
) -> torch.Tensor:
    if kernels is not None:
        return kernels.rms_norm(rows, weight, eps)
    return F.rms_norm(rows, (rows.shape[-1],), weight, eps)


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE with the halves of a head as real and imaginary part."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
