"""A reference that computes something else would be no reference."""

from pathlib import Path

import pytest
import torch

from scripts.bench.references import ContiguousDecode, FreePrefill
from shared.engine.decode import DecodeEngine
from shared.engine.loaded_model import LoadedModel, load_model
from tests.support.engine import EngineBench, random_tokens

CONTEXT = 300


@pytest.fixture(scope="module")
def loaded(engine_cache: Path) -> LoadedModel:
    return load_model("dummy:tiny", cache_dir=engine_cache, threads=1)


@pytest.mark.parametrize("chunk_tokens", [256, 97])
def test_free_chunks_give_the_logits_of_the_grid(loaded: LoadedModel, chunk_tokens: int) -> None:
    tokens = random_tokens(CONTEXT, seed=1)
    expected = EngineBench(loaded, num_slots=2).prefill(tokens, [0, 1])
    got = FreePrefill(loaded, chunk_tokens).prefill(torch.tensor(tokens))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_contiguous_steps_give_the_tokens_of_the_engine(loaded: LoadedModel) -> None:
    bench = EngineBench(loaded, num_slots=4)
    prompts = [random_tokens(CONTEXT, seed=seed) for seed in (1, 2)]
    slots = [[0, 1], [2, 3]]
    tokens = [int(bench.prefill(p, s).argmax()) for p, s in zip(prompts, slots, strict=True)]
    reference = ContiguousDecode(loaded, context=CONTEXT, batch=2, room=5)
    decode = DecodeEngine(loaded.model, loaded.layout, capacity_tokens=2 * (CONTEXT + 5))
    for index, own in enumerate(slots):
        bench.join(decode, str(index), own, CONTEXT, 5)
        reference.fill(index, bench.kv(own, CONTEXT))
    ours, theirs = list(tokens), torch.tensor(tokens)
    for position in range(CONTEXT, CONTEXT + 5):
        rows = [(str(index), token, position) for index, token in enumerate(ours)]
        ours = decode.step(rows).argmax(-1).tolist()
        theirs = reference.step(theirs)
        assert theirs.tolist() == ours
