"""The engines of a loaded model: those that compute, or those that only take their time."""

import torch

from shared.engine.decode import DecodeEngine
from shared.engine.loaded_model import LoadedModel
from shared.engine.prefill import PrefillEngine
from shared.engine.timed import TimedDecodeEngine, TimedPrefillEngine


def prefill_engine(loaded: LoadedModel, pool: torch.Tensor, device_tokens: int) -> PrefillEngine:
    given = (loaded.model, pool, loaded.layout, loaded.grid_tokens)
    if loaded.times is None:
        return PrefillEngine(*given, device_tokens=device_tokens)
    return TimedPrefillEngine(loaded.times, *given)


def decode_engine(loaded: LoadedModel, capacity_tokens: int) -> DecodeEngine:
    given = (loaded.model, loaded.layout, capacity_tokens)
    if loaded.times is None:
        return DecodeEngine(*given)
    return TimedDecodeEngine(loaded.times, *given)
