"""Reads the weights of each kind of checkpoint, under the names of model_weights."""

from collections.abc import Iterator
from pathlib import Path

import torch

from shared.checkpoint.byte_tokenizer import is_readable
from shared.checkpoint.dummy import dummy_preset
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import ModelSource
from shared.checkpoint.model_config import ModelConfig
from shared.engine.gguf_weights import read_gguf_weights
from shared.engine.model_weights import (
    EMBEDDINGS,
    FINAL_NORM,
    LM_HEAD,
    check_all_used,
    checkpoint_names,
    model_specs,
    stack_rows,
)
from shared.engine.weights_file import MappedWeights

# Engine name -> names in the checkpoint whose rows are put under each other.
_HF_LAYER = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "query_norm": ("self_attn.q_norm.weight",),
    "key_norm": ("self_attn.k_norm.weight",),
    "attention_out": ("self_attn.o_proj.weight",),
    "mlp_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
_HF_TOP = {
    EMBEDDINGS: "model.embed_tokens.weight",
    FINAL_NORM: "model.norm.weight",
    LM_HEAD: "lm_head.weight",
}


def read_weights(
    source: ModelSource, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the model in the order of model_specs()."""
    match source.kind:
        case "dummy":
            return _read_dummy(dummy_preset(source.preset or "").seed, config, dtype)
        case "gguf":
            return read_gguf_weights(source.file_path, config, dtype)
        case "hf":
            return _read_hf(source.file_path, config, dtype)


def _read_dummy(
    seed: int, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for spec in model_specs(config, dtype):
        if len(spec.shape) == 1:
            yield spec.name, torch.ones(spec.shape, dtype=dtype)
            continue
        # Scaled so that activations keep their size: what attention adds really matters.
        std = 1.0 if spec.name == EMBEDDINGS else spec.shape[1] ** -0.5
        values = torch.randn(spec.shape, generator=generator) * std
        if spec.name == LM_HEAD:
            # Greedy answers are plain text and end at max_tokens only.
            values[[token for token in range(spec.shape[0]) if not is_readable(token)]] = 0.0
        yield spec.name, values.to(dtype)


def _read_hf(
    folder: Path, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    shards = [MappedWeights(path) for path in sorted(folder.glob("*.safetensors"))]
    shard_of = {name: shard for shard in shards for name in shard.names()}

    def read(name: str) -> torch.Tensor:
        if name not in shard_of:
            raise CheckpointError(f"{folder}: no tensor {name} in its *.safetensors")
        return shard_of[name].tensor(name).to(dtype)

    shapes = {spec.name: spec.shape for spec in model_specs(config, dtype)}
    parts = {
        name: checkpoint_names(name, "model.layers.{}.{}", _HF_LAYER, _HF_TOP) for name in shapes
    }
    used = {name for names in parts.values() for name in names}
    # A tied head may be stored all the same.
    ignored = ("rotary_emb.inv_freq", *((_HF_TOP[LM_HEAD],) if config.tied_embeddings else ()))
    check_all_used(str(folder), shard_of, used, ignored)
    for part, names in parts.items():
        yield part, stack_rows(str(folder), names, [read(name) for name in names], shapes[part])
