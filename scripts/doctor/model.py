"""The model that a node here would serve: whether it can be read, and what its KV takes."""

from pathlib import Path

from scripts.doctor.check import Check
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import locate
from shared.checkpoint.model_config import load_model_config

FLOAT32_BYTES = 4


def model_check(model: str) -> Check:
    """Reads what describes it, never its weights; fetches nothing."""
    if model.count("/") == 1 and not Path(model).expanduser().exists():
        return Check("model", f"{model}: a hub name, fetched when a worker starts")
    try:
        source = locate(model)
        config = load_model_config(source)
    except CheckpointError as error:
        return Check("model", model, f"{error} (MOONPOOL_MODEL)")
    kv_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * FLOAT32_BYTES
    return Check(
        "model",
        f"{source.name}: {config.architecture}, {config.num_layers} layers, up to "
        f"{config.max_positions:,} tokens, {kv_bytes / 1024:g} KiB of KV a token in float32",
    )
