"""Presets of dummy models: seeded random weights of a given shape. For tests and dry runs."""

from dataclasses import dataclass

from shared.checkpoint.errors import CheckpointError

# Raised when the same preset would give other weights.
DUMMY_REVISION = 1


@dataclass(frozen=True, slots=True)
class DummyPreset:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    seed: int = 0


DUMMY_PRESETS: dict[str, DummyPreset] = {
    "tiny": DummyPreset(
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=512,
        max_positions=2048,
    ),
    "small": DummyPreset(
        num_layers=8,
        hidden_size=256,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        intermediate_size=704,
        vocab_size=512,
        max_positions=8192,
    ),
}


def dummy_preset(name: str) -> DummyPreset:
    preset = DUMMY_PRESETS.get(name)
    if preset is None:
        known = ", ".join(f"dummy:{preset}" for preset in DUMMY_PRESETS)
        raise CheckpointError(f"dummy:{name}: unknown preset; there are {known}")
    return preset
