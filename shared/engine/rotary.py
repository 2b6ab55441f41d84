"""Cosines and sines of rotary position embedding for every position of the context."""

import hashlib
import math

import torch

from shared.checkpoint.model_config import ModelConfig
from shared.checkpoint.rope_scaling import RopeScaling
from shared.engine.errors import EngineError


class RotaryTable:
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        # In float32 throughout, as the models were trained.
        frequencies, amplitude = rope_frequencies(config)
        positions = torch.arange(config.max_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        self._cos = (angles.cos() * amplitude).to(device, dtype)
        self._sin = (angles.sin() * amplitude).to(device, dtype)

    def fingerprint(self) -> str:
        """Equal where the tables are, to the bit: on some CPUs torch computes them differently."""
        digest = hashlib.blake2b(digest_size=8)
        for table in (self._cos, self._sin):
            digest.update(table.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each [rows, 1, head_dim / 2]: the same for all heads of a row."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rope_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """Angle per position of each pair of a head, and what cosines and sines are scaled by."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    periods = config.rope_theta**exponents
    frequencies = 1.0 / periods
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies, 1.0
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor, 1.0
        case "llama3":
            return _llama3(frequencies, scaling), 1.0
        case "yarn":
            return _yarn(periods, scaling, config), _yarn_amplitude(scaling)
        case "divisors":
            if len(scaling.divisors) != len(frequencies):
                raise EngineError(
                    f"rope_freqs.weight: {len(scaling.divisors)} values for "
                    f"{len(frequencies)} frequencies"
                )
            return frequencies / torch.tensor(scaling.divisors), 1.0


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long waves are stretched, short ones kept, and those between blended."""
    turns = scaling.original_positions / (2 * math.pi / frequencies)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = (turns - low) / (high - low)
    blended = (1 - kept_share) * frequencies / scaling.factor + kept_share * frequencies
    stretched = torch.where(turns < low, frequencies / scaling.factor, blended)
    return torch.where(turns > high, frequencies, stretched)


def _yarn(periods: torch.Tensor, scaling: RopeScaling, config: ModelConfig) -> torch.Tensor:
    """A ramp over the dimensions, between those that turn often and those that turn seldom."""
    dims = config.head_dim

    def dimension_of(num_turns: float) -> float:
        ratio = scaling.original_positions / (num_turns * 2 * math.pi)
        return dims * math.log(ratio) / (2 * math.log(config.rope_theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = (high - low) or 0.001
    ramp = ((torch.arange(dims // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    kept_share = 1 - ramp
    return (1.0 / (scaling.factor * periods)) * (1 - kept_share) + (1.0 / periods) * kept_share


def _yarn_amplitude(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return float(scaling.attention_factor)

    def growth(scale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * scale * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return growth(scaling.mscale) / growth(scaling.mscale_all_dim)
    return growth(1.0)
