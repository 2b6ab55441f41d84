"""What every way through the cluster must give: prompts, their keys and answers, of one engine."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.engine.kv_layout import DtypeName
from shared.engine.loaded_model import LoadedModel
from shared.kv.block_keys import chain_keys
from shared.messages.common import Sampling

MODEL = "dummy:tiny"
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """What of the model the workers of one bench agree on."""

    block_tokens: int | None = None
    """None: blocks as large as the grid."""
    dtype: DtypeName = "float32"


FLOAT32 = ModelFormat()
BFLOAT16 = ModelFormat(dtype="bfloat16")

_MODELS: dict[ModelFormat, LoadedModel] = {}


def reference_model(folder: Path, wanted: ModelFormat = FLOAT32) -> LoadedModel:
    """The model of all workers."""
    from shared.engine.loaded_model import load_model

    if wanted not in _MODELS:
        _MODELS[wanted] = load_model(
            MODEL, cache_dir=folder, block_tokens=wanted.block_tokens, dtype=wanted.dtype
        )
    return _MODELS[wanted]


def chain_of(tokens: Tokens, wanted: ModelFormat = FLOAT32) -> bytes:
    loaded = _MODELS[wanted]
    return chain_keys(loaded.kv_format.root(), tokens, loaded.layout.block_tokens)


def prompt(num_tokens: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 500, num_tokens, dtype=np.int32)


def reference_answer(
    tokens: Tokens, sampling: Sampling, wanted: ModelFormat = FLOAT32
) -> list[int]:
    """One engine, no pool, no cache: what every way through the cluster must give."""
    import torch

    from shared.engine.decode import DecodeEngine
    from shared.engine.prefill import PrefillEngine
    from shared.engine.sampler import Sampler
    from shared.worker.sampling import params_of

    loaded = _MODELS[wanted]
    layout, grid = loaded.layout, loaded.grid_tokens
    num_blocks = -(-len(tokens) // layout.block_tokens)
    shape = (layout.num_layers, 2, layout.block_tokens, layout.num_kv_heads, layout.head_dim)
    pool = torch.zeros(num_blocks, *shape, dtype=layout.torch_dtype)
    prefill = PrefillEngine(loaded.model, pool, layout)
    for start in range(0, len(tokens), grid):
        first, end = start // layout.block_tokens, min(start + grid, len(tokens))
        last = -(-end // layout.block_tokens)
        logits = prefill.prefill_chunk(tokens[start:end], start, range(first), range(first, last))
    assert logits is not None
    sampler = Sampler(params_of(sampling), tokens.tolist())
    answer = [sampler.choose(logits.float().numpy(), len(tokens)).token]
    decode = DecodeEngine(loaded.model, layout, len(tokens) + sampling.max_tokens)
    decode.add("s", len(tokens) + sampling.max_tokens)
    for block in range(num_blocks):
        first = block * layout.block_tokens
        valid = min(layout.block_tokens, len(tokens) - first)
        decode.load_block("s", pool, block, first, valid)
    while len(answer) < sampling.max_tokens:
        position = len(tokens) + len(answer) - 1
        logits = decode.step([("s", answer[-1], position)])[0]
        answer.append(sampler.choose(logits.float().numpy(), position + 1).token)
    return answer
