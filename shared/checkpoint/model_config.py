"""The shape of a model, read from GGUF metadata, config.json or a dummy preset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.checkpoint.byte_tokenizer import BYTE_EOS_ID
from shared.checkpoint.dummy import dummy_preset
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import GgufFile, read_gguf
from shared.checkpoint.locate import ModelSource
from shared.checkpoint.rope_scaling import (
    RopeScaling,
    rope_parameters,
    rope_scaling_from_gguf,
    rope_scaling_from_hf,
)

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rope_theta: float
    rms_eps: float
    tied_embeddings: bool
    has_qkv_bias: bool
    has_qk_norm: bool
    eos_token_ids: tuple[int, ...]
    rope_scaling: RopeScaling | None = None
    window: int | None = None
    """Tokens that a sliding layer sees, the own one included."""
    windowed_layers: frozenset[int] = frozenset()

    def window_of(self, layer: int) -> int | None:
        return self.window if layer in self.windowed_layers else None

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )


def load_model_config(source: ModelSource) -> ModelConfig:
    match source.kind:
        case "dummy":
            return _from_preset(source.preset or "")
        case "gguf":
            return _from_gguf(read_gguf(source.file_path))
        case "hf":
            return _from_hf(source.file_path)


def _from_preset(name: str) -> ModelConfig:
    preset = dummy_preset(name)
    return ModelConfig(
        architecture="llama",
        num_layers=preset.num_layers,
        hidden_size=preset.hidden_size,
        intermediate_size=preset.intermediate_size,
        num_heads=preset.num_heads,
        num_kv_heads=preset.num_kv_heads,
        head_dim=preset.head_dim,
        vocab_size=preset.vocab_size,
        max_positions=preset.max_positions,
        rope_theta=10000.0,
        rms_eps=1e-5,
        tied_embeddings=False,
        has_qkv_bias=False,
        has_qk_norm=False,
        eos_token_ids=(BYTE_EOS_ID,),
    )


def _from_gguf(file: GgufFile) -> ModelConfig:
    architecture = str(file.required("general.architecture"))
    _check_architecture(str(file.path), "general.architecture", architecture)
    get = file.metadata.get
    for key in (f"{architecture}.expert_count", f"{architecture}.attention.sliding_window"):
        if get(key) not in (None, 0):
            raise CheckpointError(f"{file.path}: {key} = {get(key)!r} is not supported")
    num_heads = int(file.required(f"{architecture}.attention.head_count"))
    hidden_size = int(file.required(f"{architecture}.embedding_length"))
    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None:
        raise CheckpointError(f"{file.path}: no tensor token_embd.weight")
    return ModelConfig(
        architecture=architecture,
        num_layers=int(file.required(f"{architecture}.block_count")),
        hidden_size=hidden_size,
        intermediate_size=int(file.required(f"{architecture}.feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(get(f"{architecture}.attention.head_count_kv", num_heads)),
        head_dim=int(get(f"{architecture}.attention.key_length", hidden_size // num_heads)),
        vocab_size=embeddings.shape[0],
        max_positions=int(file.required(f"{architecture}.context_length")),
        rope_theta=float(get(f"{architecture}.rope.freq_base", 10000.0)),
        rms_eps=float(file.required(f"{architecture}.attention.layer_norm_rms_epsilon")),
        tied_embeddings="output.weight" not in file.tensors,
        has_qkv_bias="blk.0.attn_q.bias" in file.tensors,
        has_qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        eos_token_ids=(int(file.required("tokenizer.ggml.eos_token_id")),),
        rope_scaling=rope_scaling_from_gguf(file, architecture),
    )


def _from_hf(folder: Path) -> ModelConfig:
    where = str(folder / "config.json")
    config = read_json(folder / "config.json")
    architecture = str(config.get("model_type"))
    _check_architecture(where, "model_type", architecture)
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act = {config['hidden_act']!r} is not supported")
    for key in ("mlp_bias", "attention_bias"):
        if config.get(key):
            raise CheckpointError(f"{where}: {key} is not supported")
    num_heads = int(_required(config, "num_attention_heads", where))
    hidden_size = int(_required(config, "hidden_size", where))
    num_layers = int(_required(config, "num_hidden_layers", where))
    window, windowed_layers = _window(config, num_layers, where)
    return ModelConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=int(_required(config, "intermediate_size", where)),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        vocab_size=int(_required(config, "vocab_size", where)),
        max_positions=int(_required(config, "max_position_embeddings", where)),
        rope_theta=float(
            rope_parameters(config).get("rope_theta") or config.get("rope_theta") or 10000.0
        ),
        rms_eps=float(_required(config, "rms_norm_eps", where)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=architecture == "qwen2",
        has_qk_norm=architecture == "qwen3",
        eos_token_ids=_hf_eos_token_ids(folder, config),
        rope_scaling=rope_scaling_from_hf(config, where),
        window=window,
        windowed_layers=windowed_layers,
    )


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return value


def _check_architecture(where: str, key: str, architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{where}: {key} = {architecture!r} is not supported, only {', '.join(ARCHITECTURES)}"
        )


def _required(config: Mapping[str, Any], key: str, where: str) -> Any:
    if config.get(key) is None:
        raise CheckpointError(f"{where}: no {key}")
    return config[key]


def _window(
    config: Mapping[str, Any], num_layers: int, where: str
) -> tuple[int | None, frozenset[int]]:
    """The sliding window and the layers that have it; None where all see the whole context."""
    if not config.get("use_sliding_window", config.get("model_type") == "mistral"):
        return None, frozenset()
    window = config.get("sliding_window")
    if window is None:
        return None, frozenset()
    if not isinstance(window, int) or window < 1:
        raise CheckpointError(f"{where}: sliding_window = {window!r} is not a number of tokens")
    kinds = config.get("layer_types")
    if kinds is None:
        # The first layers see everything; Mistral has no such layers.
        first = int(config.get("max_window_layers", 28)) if "qwen" in config["model_type"] else 0
        return window, frozenset(range(first, num_layers))
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown or len(kinds) != num_layers:
        raise CheckpointError(
            f"{where}: layer_types has {len(kinds)} entries of {', '.join(sorted(set(kinds)))} for "
            f"{num_layers} layers; only sliding_attention and full_attention are supported"
        )
    return window, frozenset(at for at, kind in enumerate(kinds) if kind == "sliding_attention")


def _hf_eos_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.is_file() else None
    eos = config.get("eos_token_id") if eos is None else eos
    if eos is None:
        return ()
    return tuple(int(token) for token in eos) if isinstance(eos, list) else (int(eos),)
