"""The way of a prompt's KV on a device, on a CPU: with copies at once and with late ones."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shared.engine.copy_streams import CopyStreams, InlineStreams
from shared.engine.errors import Cancelled
from shared.engine.loaded_model import LoadedModel
from shared.engine.paged_prompt_kv import PagedPromptKv
from shared.engine.prefill import PrefillEngine
from tests.support.deferred_streams import DeferredStreams
from tests.support.engine import EngineBench, random_tokens

GRID = 256
MakeStreams = Callable[[], CopyStreams]


@pytest.fixture(params=[InlineStreams, DeferredStreams], ids=["at once", "late"])
def make_streams(request: pytest.FixtureRequest) -> MakeStreams:
    made: MakeStreams = request.param
    return made


@pytest.fixture(params=["tiny_torch", "tiny_torch_small_blocks", "tiny_torch_bf16"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model: LoadedModel = request.getfixturevalue(request.param)
    return model


class PagedBench(EngineBench):
    """Prompts of an engine whose KV lies in pages beside the pool."""

    def __init__(
        self, loaded: LoadedModel, num_slots: int, streams: CopyStreams, num_tokens: int = 0
    ) -> None:
        super().__init__(loaded, num_slots)
        self.kv_pages = PagedPromptKv(
            loaded.config,
            loaded.layout,
            self.pool,
            streams,
            max_rows=loaded.grid_tokens,
            num_tokens=num_tokens,
            device=torch.device("cpu"),
        )
        self.prefill_engine = PrefillEngine(
            loaded.model, self.pool, loaded.layout, loaded.grid_tokens, kv=self.kv_pages
        )


@pytest.mark.parametrize("tail", [1, 100])
def test_pages_give_the_bits_of_the_pool_in_place(
    loaded: LoadedModel, make_streams: MakeStreams, tail: int
) -> None:
    prompt = random_tokens(2 * loaded.grid_tokens + tail, seed=1)
    plain = EngineBench(loaded, num_slots=16)
    paged = PagedBench(loaded, 16, make_streams())
    slots = list(range(plain.num_blocks(len(prompt))))
    moved = [(7 * slot + 3) % 16 for slot in slots]
    assert torch.equal(paged.prefill(prompt, moved), plain.prefill(prompt, slots))
    assert torch.equal(paged.kv(moved, len(prompt)), plain.kv(slots, len(prompt)))


def test_a_hit_gives_the_bits_of_a_cold_run(loaded: LoadedModel, make_streams: MakeStreams) -> None:
    grid = loaded.grid_tokens
    prompt = random_tokens(2 * grid + 9, seed=4)
    bench = PagedBench(loaded, 32, make_streams())
    blocks = bench.num_blocks(len(prompt))
    cold = bench.prefill(prompt, list(range(blocks)))
    slots = list(range(31, 31 - blocks, -1))
    bench.prefill(prompt[:grid] + random_tokens(20, seed=5), slots)
    assert torch.equal(bench.prefill(prompt, slots, cached_tokens=grid), cold)


def test_layers_are_reported_in_order_and_only_when_they_are_in_the_pool(
    tiny_torch: LoadedModel, make_streams: MakeStreams
) -> None:
    expected = EngineBench(tiny_torch, num_slots=1)
    expected.prefill(random_tokens(GRID, seed=1), [0])
    bench = PagedBench(tiny_torch, 1, make_streams())
    seen: list[tuple[int, bool]] = []

    def on_layer(layer: int) -> None:
        seen.append((layer, torch.equal(bench.pool[0, layer], expected.pool[0, layer])))

    tokens = np.array(random_tokens(GRID, seed=1), dtype=np.int32)
    for want_logits in (True, False):
        bench.pool.zero_()
        seen.clear()
        bench.prefill_engine.prefill_chunk(
            tokens, 0, [], [0], on_layer=on_layer, want_logits=want_logits
        )
        assert seen == [(layer, True) for layer in range(tiny_torch.layout.num_layers)]


def test_a_prefix_is_loaded_layer_by_layer_ahead_of_its_use(tiny_torch: LoadedModel) -> None:
    bench = PagedBench(tiny_torch, 3, streams := DeferredStreams())
    prompt = random_tokens(GRID + 5, seed=1)
    bench.prefill(prompt, [0, 1])
    streams.loads.ordered.clear()
    streams.loads.num_done = 0
    done: list[int] = []
    bench.prefill_engine.prefill_chunk(
        np.array(prompt[GRID:], dtype=np.int32),
        GRID,
        [0],
        [2],
        is_cancelled=lambda: bool(done.append(streams.loads.num_done)),
    )
    # Of two layers, one block each: nobody waited for the second before the first was used.
    assert done == [0, 1]
    assert len(streams.loads.ordered) == 2


def test_with_generations_a_block_is_loaded_once(tiny_torch: LoadedModel) -> None:
    bench = PagedBench(tiny_torch, 3, streams := DeferredStreams())
    tokens = np.array(random_tokens(3 * GRID, seed=1), dtype=np.int32)
    engine, logits = bench.prefill_engine, []
    for start, prefix, own, uses in ((0, [], [0], [4]), (GRID, [0], [1], [4, 7])):
        chunk = tokens[start : start + GRID]
        logits.append(engine.prefill_chunk(chunk, start, prefix, own, generations=uses))
    assert not streams.loads.ordered
    # The slot has another use now: what is on the device is not that.
    engine.prefill_chunk(tokens[2 * GRID :], 2 * GRID, [0, 1], [2], generations=[5, 7, 1])
    assert len(streams.loads.ordered) == tiny_torch.layout.num_layers
    assert torch.equal(bench.prefill(tokens[: 2 * GRID].tolist(), [0, 1]), _some(logits[1]))


def test_blocks_used_longest_ago_make_room_on_the_device(tiny_torch: LoadedModel) -> None:
    context = tiny_torch.config.max_positions
    bench = PagedBench(tiny_torch, context // GRID + 4, streams := DeferredStreams(), context)
    tokens = np.array(random_tokens(context, seed=1), dtype=np.int32)
    engine, count = bench.prefill_engine, context // GRID
    for use in range(3):  # other prompts, which fill the device
        engine.prefill_chunk(tokens[:GRID], 0, [], [count + use], generations=[use])
    for chunk in range(count):
        slots = list(range(chunk))
        engine.prefill_chunk(
            tokens[chunk * GRID : (chunk + 1) * GRID],
            chunk * GRID,
            slots,
            [chunk],
            generations=[9] * (chunk + 1),
        )
    assert not streams.loads.ordered
    assert bench.kv_pages.num_kept_blocks == count


def test_a_cancelled_chunk_leaves_no_copy_under_way_and_nothing_half_loaded(
    tiny_torch: LoadedModel,
) -> None:
    bench = PagedBench(tiny_torch, 4, streams := DeferredStreams())
    prompt = random_tokens(GRID + 30, seed=1)
    cold = bench.prefill(prompt, [0, 1])
    asked: list[bool] = []

    def is_cancelled() -> bool:
        asked.append(True)
        return len(asked) == 2

    chunk = np.array(prompt[GRID:], dtype=np.int32)
    with pytest.raises(Cancelled):
        bench.prefill_engine.prefill_chunk(
            chunk, GRID, [0], [2], generations=[1, 1], is_cancelled=is_cancelled
        )
    for stream in (streams.loads, streams.stores):
        assert stream.num_done == len(stream.ordered)
    assert bench.kv_pages.num_kept_blocks == 0
    again = bench.prefill_engine.prefill_chunk(chunk, GRID, [0], [2], generations=[1, 1])
    assert torch.equal(_some(again), cold)
    assert torch.equal(bench.kv([0, 2], len(prompt)), bench.kv([0, 1], len(prompt)))


def _some(logits: torch.Tensor | None) -> torch.Tensor:
    assert logits is not None
    return logits
