"""The device cache of decode, on a CPU: with copies at once and with late ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from shared.engine.attention import paged_decode_attention
from shared.engine.copy_streams import CopyStreams, InlineStreams
from shared.engine.decode import DecodeEngine
from shared.engine.device import CPU, DecodeAttentionKind
from shared.engine.errors import EngineError
from shared.engine.loaded_model import LoadedModel
from shared.engine.model import LlamaModel
from shared.engine.page_table import PageTable, token_runs
from tests.support.deferred_streams import DeferredStreams
from tests.support.engine import EngineBench, random_tokens

MakeStreams = Callable[[], CopyStreams]
LENGTHS = (300, 17, 256, 64)


@pytest.fixture(params=[InlineStreams, DeferredStreams], ids=["at once", "late"])
def make_streams(request: pytest.FixtureRequest) -> MakeStreams:
    made: MakeStreams = request.param
    return made


@pytest.fixture(params=["tiny_torch", "tiny_torch_small_blocks", "tiny_torch_bf16"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model: LoadedModel = request.getfixturevalue(request.param)
    return model


def model_with(loaded: LoadedModel, kind: DecodeAttentionKind) -> LlamaModel:
    model = loaded.model.with_layers(loaded.layout.num_layers)
    model.device = replace(CPU, decode_attention=kind)
    return model


def paged_engine(
    loaded: LoadedModel, streams: CopyStreams, kind: DecodeAttentionKind = "each"
) -> DecodeEngine:
    model = model_with(loaded, kind)
    attention = paged_decode_attention(model, loaded.layout, streams, 2000)
    return DecodeEngine(model, loaded.layout, 2000, attention=attention)


def bench_of(loaded: LoadedModel) -> tuple[EngineBench, list[list[int]], list[list[int]]]:
    """Prompts in the pool, and their slots."""
    bench = EngineBench(loaded, num_slots=40)
    free = iter(range(39, -1, -1))
    prompts, places = [], []
    for seed, length in enumerate(LENGTHS):
        prompt = random_tokens(length, seed=seed)
        slots = [next(free) for _ in range(bench.num_blocks(length))]
        bench.prefill(prompt, slots)
        prompts.append(prompt)
        places.append(slots)
    return bench, prompts, places


def steps(bench: EngineBench, engine: DecodeEngine, places: list[list[int]]) -> torch.Tensor:
    """Logits [step, sequence, vocab] of steps that sequences join one by one."""
    rows: list[torch.Tensor] = []
    tokens = [3] * len(LENGTHS)
    for index, slots in enumerate(places):
        bench.join(engine, str(index), slots, LENGTHS[index], room=10)
        if index == 0:
            engine.step([("0", 3, LENGTHS[0])])  # while the others are not there
    for step in range(4):
        batch = [(str(index), tokens[index], length + step) for index, length in enumerate(LENGTHS)]
        logits = engine.step(batch)
        tokens = logits.argmax(-1).tolist()
        rows.append(logits)
    return torch.stack(rows)


def test_pages_give_the_bits_of_contiguous_caches(
    loaded: LoadedModel, make_streams: MakeStreams
) -> None:
    bench, _, places = bench_of(loaded)
    expected = steps(bench, DecodeEngine(loaded.model, loaded.layout, 2000), places)
    assert torch.equal(steps(bench, paged_engine(loaded, make_streams()), places), expected)


def test_batched_attention_gives_the_same_up_to_rounding(
    loaded: LoadedModel, make_streams: MakeStreams
) -> None:
    bench, _, places = bench_of(loaded)
    expected = steps(bench, DecodeEngine(loaded.model, loaded.layout, 2000), places)
    engine = paged_engine(loaded, make_streams(), "batched")
    got = steps(bench, engine, places)
    tolerance = 1e-4 if loaded.layout.dtype == "float32" else 0.15
    torch.testing.assert_close(got[0], expected[0], rtol=tolerance, atol=tolerance)


def test_a_block_may_change_once_it_is_loaded(tiny_torch: LoadedModel) -> None:
    """Its slot belongs to others then, however late the copy to the device is."""
    bench, _, places = bench_of(tiny_torch)
    expected = DecodeEngine(tiny_torch.model, tiny_torch.layout, 2000)
    late = paged_engine(tiny_torch, DeferredStreams())
    for engine in (expected, late):
        bench.join(engine, "0", places[0], LENGTHS[0], room=1)
    bench.pool.fill_(float("nan"))
    batch = [("0", 3, LENGTHS[0])]
    assert torch.equal(late.step(batch), expected.step(batch))


def test_pages_come_back_when_a_sequence_leaves(tiny_torch: LoadedModel) -> None:
    bench, _, places = bench_of(tiny_torch)
    engine = paged_engine(tiny_torch, DeferredStreams())
    for round_number in range(300):
        name = str(round_number)
        bench.join(engine, name, places[1], LENGTHS[1], room=1900)
        engine.remove(name)
    assert engine.used_tokens == 0


def test_a_capacity_of_uneven_sequences_fits_the_pages(tiny_torch: LoadedModel) -> None:
    engine = paged_engine(tiny_torch, InlineStreams())
    for number in range(117):
        engine.add(str(number), 17)  # each wastes 15 of its second page
    assert engine.used_tokens == 117 * 17
    assert not engine.can_add(17)


def test_what_is_saved_is_what_was_loaded(tiny_torch: LoadedModel) -> None:
    bench, _, places = bench_of(tiny_torch)
    engine = paged_engine(tiny_torch, DeferredStreams())
    bench.join(engine, "0", places[0], LENGTHS[0], room=1)
    assert torch.equal(engine.saved("0"), bench.kv(places[0], LENGTHS[0]))


def test_a_cache_that_grows_keeps_its_pages_and_gets_more(tiny_torch: LoadedModel) -> None:
    attention = paged_decode_attention(tiny_torch.model, tiny_torch.layout, DeferredStreams(), 2000)
    other = attention.new_cache(40)
    cache = attention.new_cache(20)
    larger = attention.grown(cache, 70)
    assert larger[:2].tolist() == cache.tolist()
    assert len(larger) == 5
    assert not set(larger.tolist()) & set(other.tolist())
    assert attention.grown(larger, 80).tolist() == larger.tolist()


@pytest.mark.parametrize(
    ("pages", "start", "count", "runs"),
    [
        ([2, 3, 4], 0, 48, [(0, 32, 48)]),
        ([2, 4, 5], 0, 40, [(0, 32, 16), (16, 64, 24)]),
        ([7, 1, 2], 5, 20, [(0, 117, 11), (11, 16, 9)]),
        ([1, 0], 16, 1, [(0, 0, 1)]),
        ([5], 3, 0, []),
    ],
)
def test_neighbouring_pages_are_one_copy(
    pages: list[int], start: int, count: int, runs: list[tuple[int, int, int]]
) -> None:
    assert list(token_runs(pages, 16, start, count)) == runs


def test_a_table_without_enough_pages_says_so_and_takes_none() -> None:
    table = PageTable(3, 16)
    pages = table.take(20)
    with pytest.raises(EngineError, match="need 2 pages of the device cache, 1 are free"):
        table.take(17)
    table.give_back(pages)
    assert table.num_free == 3
