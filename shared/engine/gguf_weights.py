"""Dequantises the weights of a GGUF file, under the names of model_weights."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import GgufFile, read_gguf
from shared.checkpoint.model_config import ModelConfig
from shared.engine.model_weights import (
    EMBEDDINGS,
    FINAL_NORM,
    LM_HEAD,
    check_all_used,
    checkpoint_names,
    model_specs,
    stack_rows,
)

_Weight = npt.NDArray[np.float32]

_GGUF_LAYER = {
    "input_norm": ("attn_norm.weight",),
    "qkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "qkv_bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "query_norm": ("attn_q_norm.weight",),
    "key_norm": ("attn_k_norm.weight",),
    "attention_out": ("attn_output.weight",),
    "mlp_norm": ("ffn_norm.weight",),
    "gate_up": ("ffn_gate.weight", "ffn_up.weight"),
    "down": ("ffn_down.weight",),
}
_GGUF_TOP = {
    EMBEDDINGS: "token_embd.weight",
    FINAL_NORM: "output_norm.weight",
    LM_HEAD: "output.weight",
}
_GGUF_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def read_gguf_weights(
    path: Path, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    file = read_gguf(path)
    with path.open("rb") as handle:
        data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)

    def read(name: str) -> torch.Tensor:
        weight = _dequantized(file, data, name)
        if config.architecture == "llama" and ".attn_q." in name:
            weight = _unpermuted(weight, config.num_heads)
        elif config.architecture == "llama" and ".attn_k." in name:
            weight = _unpermuted(weight, config.num_kv_heads)
        return torch.from_numpy(np.ascontiguousarray(weight)).to(dtype)

    shapes = {spec.name: spec.shape for spec in model_specs(config, dtype)}
    parts = {name: checkpoint_names(name, "blk.{}.{}", _GGUF_LAYER, _GGUF_TOP) for name in shapes}
    used = {name for names in parts.values() for name in names}
    # Read with the configuration.
    check_all_used(str(path), file.tensors, used, ("rope_freqs.weight",))
    for part, names in parts.items():
        yield part, stack_rows(str(path), names, [read(name) for name in names], shapes[part])


def _dequantized(file: GgufFile, data: mmap.mmap, name: str) -> _Weight:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{file.path}: no tensor {name}")
    try:
        kind = GGMLQuantizationType(tensor.ggml_type)
    except ValueError:
        kind = None
    if kind is None or kind.name not in _GGUF_TYPES:
        shown = tensor.ggml_type if kind is None else kind.name
        raise CheckpointError(
            f"{file.path}: {name} is quantised as {shown}; only {', '.join(_GGUF_TYPES)} are "
            "supported"
        )
    values_per_group, bytes_per_group = GGML_QUANT_SIZES[kind]
    num_values = int(np.prod(tensor.shape))
    num_bytes = num_values // values_per_group * bytes_per_group
    if tensor.offset_bytes + num_bytes > len(data):
        raise CheckpointError(f"{file.path}: the file ends inside tensor {name}")
    raw = np.frombuffer(data, dtype=np.uint8, count=num_bytes, offset=tensor.offset_bytes)
    row_bytes = tensor.shape[-1] // values_per_group * bytes_per_group
    values = dequantize(raw.reshape(-1, row_bytes), kind)
    return np.array(values, dtype=np.float32).reshape(tensor.shape)


def _unpermuted(weight: _Weight, num_heads: int) -> _Weight:
    """GGUF stores the q and k rows of the llama architecture for interleaved RoPE."""
    rows, rest = weight.shape[0], weight.shape[1:]
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, *rest).swapaxes(1, 2).reshape(rows, *rest)
