"""How a checkpoint stretches its rotary positions beyond the context it was first trained on.

Only kinds whose angles are a function of the position alone: a cached block must mean the same in
every sequence. `dynamic` and `longrope` change the angles with the length of the sequence.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import GgufFile

RopeKind = Literal["linear", "llama3", "yarn", "divisors"]
_ROPE_FREQS = "rope_freqs.weight"
_F32 = 0


@dataclass(frozen=True, slots=True)
class RopeScaling:
    kind: RopeKind
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    divisors: tuple[float, ...] = ()
    """Of each frequency, where the checkpoint stores them ready made."""


def rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`rope_parameters` is the newer form, `rope_theta` with `rope_scaling` the older one."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found if isinstance(found, Mapping) else {}


def rope_scaling_from_hf(config: Mapping[str, Any], where: str) -> RopeScaling | None:
    parameters = rope_parameters(config)
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise CheckpointError(f"{where}: partial_rotary_factor = {partial!r} is not supported")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"

    def number(key: str) -> float:
        value = parameters.get(key)
        if value is None and key == "original_max_position_embeddings":
            value = config.get(key) or config.get("max_position_embeddings")
        if not isinstance(value, int | float) or not value > 0:
            raise CheckpointError(f"{where}: rope_type {kind!r} needs {key}, it is {value!r}")
        return float(value)

    match kind:
        case "default":
            return None
        case "linear":
            return RopeScaling("linear", factor=number("factor"))
        case "llama3":
            return RopeScaling(
                "llama3",
                factor=number("factor"),
                original_positions=int(number("original_max_position_embeddings")),
                low_freq_factor=number("low_freq_factor"),
                high_freq_factor=number("high_freq_factor"),
            )
        case "yarn":
            return RopeScaling(
                "yarn",
                factor=number("factor"),
                original_positions=int(number("original_max_position_embeddings")),
                beta_fast=float(parameters.get("beta_fast") or 32),
                beta_slow=float(parameters.get("beta_slow") or 1),
                is_truncated=bool(parameters.get("truncate", True)),
                attention_factor=parameters.get("attention_factor"),
                mscale=parameters.get("mscale"),
                mscale_all_dim=parameters.get("mscale_all_dim"),
            )
    raise CheckpointError(
        f"{where}: rope_type = {kind!r} is not supported, only default, linear, llama3 and yarn"
    )


def rope_scaling_from_gguf(file: GgufFile, architecture: str) -> RopeScaling | None:
    key = f"{architecture}.rope.scaling.type"
    kind = file.metadata.get(key, "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{file.path}: {key} = {kind!r} is not supported, only 'none' and 'linear'; give the "
            "Hugging Face folder of this model"
        )
    if _ROPE_FREQS in file.tensors:
        return RopeScaling("divisors", divisors=_read_divisors(file))
    if kind == "none":
        return None
    return RopeScaling("linear", factor=float(file.required(f"{architecture}.rope.scaling.factor")))


def _read_divisors(file: GgufFile) -> tuple[float, ...]:
    tensor = file.tensors[_ROPE_FREQS]
    if tensor.ggml_type != _F32 or len(tensor.shape) != 1:
        raise CheckpointError(f"{file.path}: {_ROPE_FREQS} is not a list of F32 values")
    count = tensor.shape[0]
    with file.path.open("rb") as data:
        data.seek(tensor.offset_bytes)
        raw = data.read(4 * count)
    if len(raw) != 4 * count:
        raise CheckpointError(f"{file.path}: the file ends inside tensor {_ROPE_FREQS}")
    return struct.unpack(f"<{count}f", raw)
