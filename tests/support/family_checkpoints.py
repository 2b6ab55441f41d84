"""Small seeded checkpoints of each model family, written as Hugging Face folders.

The same bytes wherever they are written, so that answers computed once with another engine can be
kept in a file and compared with.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from shared.checkpoint.byte_tokenizer import build_byte_tokenizer

VOCAB_SIZE = 512
NUM_ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Family:
    """`config` is added to the common part of config.json."""

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    num_layers: int = 3
    dtype: torch.dtype = torch.float32
    num_shards: int = 1
    prompt_tokens: int = 300
    seed: int = 0

    @property
    def is_tied(self) -> bool:
        return bool(self.config.get("tie_word_embeddings"))


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}

FAMILIES: dict[str, Family] = {
    "llama2": Family("llama", num_kv_heads=4),
    "llama3": Family(
        "llama",
        {"rope_theta": 5e5, "rope_scaling": _LLAMA3, "tie_word_embeddings": True},
        dtype=torch.bfloat16,
        num_shards=3,
    ),
    "llama-linear": Family("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "qwen2": Family(
        "qwen2", {"rope_theta": 1e6, "tie_word_embeddings": True}, num_kv_heads=1, seed=2
    ),
    "qwen2-yarn": Family("qwen2", {"rope_theta": 1e6, "rope_scaling": _YARN}, num_shards=2),
    "qwen2-window": Family(
        "qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
    ),
    "qwen3": Family("qwen3", {"rope_theta": 1e6}, head_dim=32),
    "mistral": Family("mistral", {"sliding_window": None}, num_heads=8, head_dim=8),
    "mistral-window": Family("mistral", {"sliding_window": 100}, prompt_tokens=530),
}
SCORED_FAMILIES = ("llama3", "qwen2-window", "qwen3", "mistral-window")
"""Whose prompts have their log probabilities in the goldens."""
_HIDDEN_SIZE, _INTERMEDIATE_SIZE = 64, 160


def family_prompt(family: Family) -> list[int]:
    random = np.random.default_rng(family.seed + 1)
    return [int(token) for token in random.integers(0, VOCAB_SIZE, family.prompt_tokens)]


def write_family(family: Family, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(family)))
    build_byte_tokenizer(VOCAB_SIZE).save(str(folder / "tokenizer.json"))
    _write_shards(_tensors(family), family.num_shards, folder)
    return folder


def _config(family: Family) -> dict[str, Any]:
    architecture = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}
    return {
        "architectures": [architecture[family.model_type] + "ForCausalLM"],
        "model_type": family.model_type,
        "hidden_size": _HIDDEN_SIZE,
        "intermediate_size": _INTERMEDIATE_SIZE,
        "num_hidden_layers": family.num_layers,
        "num_attention_heads": family.num_heads,
        "num_key_value_heads": family.num_kv_heads,
        "head_dim": family.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": 257,
        "eos_token_id": 256,
        **family.config,
    }


def _tensors(family: Family) -> dict[str, torch.Tensor]:
    """Scaled so that activations keep their size, and what attention adds really matters."""
    random = np.random.default_rng(family.seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
        values = random.standard_normal(shape, dtype=np.float32) * np.float32(std)
        return torch.from_numpy(values).to(family.dtype)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return normal(rows, columns, std=gain * columns**-0.5)

    def norm(size: int) -> torch.Tensor:
        return (1 + normal(size, std=0.1).float()).to(family.dtype)

    query = family.num_heads * family.head_dim
    key = family.num_kv_heads * family.head_dim
    # A tied head would only repeat the last token if its embedding outweighed all else.
    embedding_std = 0.05 if family.is_tied else 1.0
    tensors = {"model.embed_tokens.weight": normal(VOCAB_SIZE, _HIDDEN_SIZE, std=embedding_std)}
    for layer in range(family.num_layers):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        tensors[prefix + "input_layernorm.weight"] = norm(_HIDDEN_SIZE)
        # Sharp attention: which positions are seen, and how far away, decides the answer.
        tensors[attention + "q_proj.weight"] = matrix(query, _HIDDEN_SIZE, gain=2.0)
        tensors[attention + "k_proj.weight"] = matrix(key, _HIDDEN_SIZE, gain=2.0)
        tensors[attention + "v_proj.weight"] = matrix(key, _HIDDEN_SIZE)
        tensors[attention + "o_proj.weight"] = matrix(_HIDDEN_SIZE, query, gain=2.0)
        if family.model_type == "qwen2":
            for part, size in (("q", query), ("k", key), ("v", key)):
                tensors[f"{attention}{part}_proj.bias"] = normal(size, std=0.5)
        if family.model_type == "qwen3":
            for part in ("q", "k"):
                tensors[f"{attention}{part}_norm.weight"] = norm(family.head_dim)
        tensors[prefix + "post_attention_layernorm.weight"] = norm(_HIDDEN_SIZE)
        for part in ("gate", "up"):
            tensors[f"{prefix}mlp.{part}_proj.weight"] = matrix(_INTERMEDIATE_SIZE, _HIDDEN_SIZE)
        tensors[prefix + "mlp.down_proj.weight"] = matrix(_HIDDEN_SIZE, _INTERMEDIATE_SIZE)
    tensors["model.norm.weight"] = norm(_HIDDEN_SIZE)
    if not family.is_tied:
        tensors["lm_head.weight"] = matrix(VOCAB_SIZE, _HIDDEN_SIZE, gain=3.0)
    return tensors


def _write_shards(tensors: dict[str, torch.Tensor], num_shards: int, folder: Path) -> None:
    metadata = {"format": "pt"}
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        file_name = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        own = names[number::num_shards]
        save_file({name: tensors[name] for name in own}, folder / file_name, metadata)
        weight_map |= dict.fromkeys(own, file_name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
