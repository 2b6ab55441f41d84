"""How much arithmetic and how many bytes a model's work is: what limits are compared with."""

from shared.checkpoint.model_config import ModelConfig


def linear_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """(inputs, outputs) of the matrix products of one layer."""
    query = config.num_heads * config.head_dim
    return [
        (config.hidden_size, query + 2 * config.num_kv_heads * config.head_dim),
        (query, config.hidden_size),
        (config.hidden_size, 2 * config.intermediate_size),
        (config.intermediate_size, config.hidden_size),
    ]


def layer_params(config: ModelConfig) -> int:
    return sum(inputs * outputs for inputs, outputs in linear_shapes(config))


def prefill_flops(config: ModelConfig, num_tokens: int) -> float:
    """Of a whole prompt: linears, causal attention, and the head once."""
    linears = 2.0 * layer_params(config) * config.num_layers * num_tokens
    query = config.num_heads * config.head_dim
    # Scores and their product with V; half of the square is masked.
    attention = 4.0 * query * config.num_layers * num_tokens * num_tokens / 2
    return linears + attention + 2.0 * config.hidden_size * config.vocab_size


def decode_step_bytes(
    config: ModelConfig, *, context: int, batch: int, bytes_per_value: int
) -> float:
    """What one step must read at least: all weights once, and the KV of every sequence."""
    weights = layer_params(config) * config.num_layers + config.hidden_size * config.vocab_size
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * context * batch
    return float((weights + kv) * bytes_per_value)
