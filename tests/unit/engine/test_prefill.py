import numpy as np
import pytest
import torch

from shared.engine.errors import Cancelled, EngineError
from shared.engine.loaded_model import LoadedModel
from tests.support.engine import EngineBench, random_tokens

GRID = 256


@pytest.fixture(params=["tiny", "tiny_small_blocks", "tiny_bf16", "tiny_torch", "tiny_torch_bf16"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model: LoadedModel = request.getfixturevalue(request.param)
    return model


@pytest.mark.parametrize("tail", [1, 2, 100, 255])
def test_a_hit_of_every_grid_length_in_other_slots_gives_the_cold_bits(
    loaded: LoadedModel, tail: int
) -> None:
    grid = loaded.grid_tokens
    prompt = random_tokens(3 * grid + tail, seed=1)
    blocks = -(-len(prompt) // loaded.layout.block_tokens)
    bench = EngineBench(loaded, num_slots=3 * blocks)
    cold_slots = list(range(blocks))
    cold_logits = bench.prefill(prompt, cold_slots)
    cold_kv = bench.kv(cold_slots, len(prompt))
    for cached in range(grid, len(prompt), grid):
        # Another request with another tail filled the cache, in scattered slots.
        slots = list(reversed(range(blocks + cached // grid, 3 * blocks)))[:blocks]
        bench.prefill(prompt[:cached] + random_tokens(50, seed=cached), slots)
        logits = bench.prefill(prompt, slots, cached_tokens=cached)
        assert torch.equal(logits, cold_logits)
        assert torch.equal(bench.kv(slots, len(prompt)), cold_kv)


def test_another_prefix_gives_other_bits(tiny: LoadedModel) -> None:
    """Guards the equalities above: the model must look at its prefix."""
    bench = EngineBench(tiny, num_slots=4)
    tail = random_tokens(20, seed=3)
    first = bench.prefill(random_tokens(GRID, seed=1) + tail, [0, 1])
    second = bench.prefill(random_tokens(GRID, seed=2) + tail, [2, 3])
    assert not torch.equal(first, second)


def test_requests_may_alternate_between_chunks(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=6)
    first, second = random_tokens(600, seed=1), random_tokens(700, seed=2)
    alone = [bench.prefill(first, [0, 1, 2]), bench.prefill(second, [3, 4, 5])]
    bench.pool.zero_()
    mixed: list[torch.Tensor | None] = [None, None]
    for start in range(0, 700, GRID):
        for index, (tokens, slots) in enumerate(((first, [5, 3, 1]), (second, [4, 2, 0]))):
            mixed[index] = bench.chunk(np.array(tokens, dtype=np.int32), start, slots)
    for got, expected in zip(mixed, alone, strict=True):
        assert got is not None
        assert torch.equal(got, expected)


def test_a_layer_is_in_the_pool_when_it_is_reported(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=1)
    seen: list[tuple[int, bool]] = []

    def on_layer(layer: int) -> None:
        blocks = bench.pool[0]
        seen.append((layer, bool(blocks[layer].any()) and not bool(blocks[layer + 1 :].any())))

    tokens = np.array(random_tokens(GRID, seed=1), dtype=np.int32)
    bench.prefill_engine.prefill_chunk(tokens, 0, [], [0], on_layer=on_layer)
    assert seen == [(0, True), (1, True)]


def test_without_logits_the_kv_is_the_same(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=2)
    tokens = np.array(random_tokens(GRID, seed=1), dtype=np.int32)
    assert bench.prefill_engine.prefill_chunk(tokens, 0, [], [0]) is not None
    nothing = bench.prefill_engine.prefill_chunk(tokens, 0, [], [1], want_logits=False)
    assert nothing is None
    assert torch.equal(bench.pool[0], bench.pool[1])


def test_a_cancelled_chunk_stops_between_layers(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=1)
    reported: list[int] = []
    tokens = np.array(random_tokens(GRID, seed=1), dtype=np.int32)
    with pytest.raises(Cancelled):
        bench.prefill_engine.prefill_chunk(
            tokens, 0, [], [0], on_layer=reported.append, is_cancelled=lambda: bool(reported)
        )
    assert reported == [0]


def test_a_partial_block_leaves_the_rest_of_its_slot_alone(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=1)
    bench.pool.fill_(7.0)
    bench.prefill(random_tokens(10, seed=1), [0])
    assert bool((bench.pool[0, :, :, 10:] == 7.0).all())
    assert not bool((bench.pool[0, :, :, :10] == 7.0).any())


@pytest.mark.parametrize(
    ("count", "start", "prefix", "chunk", "field"),
    [
        (0, 0, [], [], "tokens"),
        (GRID + 1, 0, [], [0, 1], "tokens"),
        (5, 100, [], [0], "start"),
        (5, GRID, [], [0], "prefix_slots"),
        (5, 0, [], [0, 1], "chunk_slots"),
        (5, 2048, [0] * 8, [1], "tokens"),
    ],
)
def test_a_chunk_that_cannot_be_is_refused_by_name(
    tiny: LoadedModel, count: int, start: int, prefix: list[int], chunk: list[int], field: str
) -> None:
    engine = EngineBench(tiny, num_slots=2).prefill_engine
    with pytest.raises(EngineError, match=f"^{field}:"):
        engine.prefill_chunk(np.zeros(count, dtype=np.int32), start, prefix, chunk)


def test_a_token_outside_of_the_vocabulary_is_refused(tiny: LoadedModel) -> None:
    engine = EngineBench(tiny, num_slots=1).prefill_engine
    with pytest.raises(EngineError, match="vocabulary"):
        engine.prefill_chunk(np.array([512], dtype=np.int32), 0, [], [0])
