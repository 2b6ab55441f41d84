"""The shape of a model, read from GGUF metadata, config.json or a dummy preset."""

from dataclasses import dataclass

from shared.checkpoint.locate import ModelSource


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str  # llama, qwen2, qwen3, mistral
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


def load_model_config(source: ModelSource) -> ModelConfig:
    raise NotImplementedError(source)
