import time
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.engine.engines import decode_engine, prefill_engine
from shared.engine.errors import Cancelled, EngineError
from shared.engine.kv_layout import view_pool
from shared.engine.loaded_model import LoadedModel, load_model

CHUNK_S, LAST_S, STEP_S = 0.02, 0.03, 0.01


class Times:
    def chunk_s(self, num_tokens: int, prefix_tokens: int, *, is_last: bool) -> float:
        return LAST_S if is_last else CHUNK_S

    def step_s(self, batch: int, context_tokens: float) -> float:
        return STEP_S * batch


@pytest.fixture(scope="module")
def timed(engine_cache: Path) -> LoadedModel:
    return load_model("dummy:tiny", cache_dir=engine_cache, times=Times())


@pytest.fixture
def pool(timed: LoadedModel) -> torch.Tensor:
    layout = timed.layout
    return view_pool(memoryview(bytearray(4 * layout.block_bytes)), layout, 4)


def test_its_kv_is_never_taken_for_that_of_a_model_that_computes(
    timed: LoadedModel, engine_cache: Path
) -> None:
    computing = load_model("dummy:tiny", cache_dir=engine_cache)
    assert timed.kv_format.root() != computing.kv_format.root()


def test_only_dummy_models_are_timed(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="dummy"):
        load_model("SmolLM2-135M-Instruct", cache_dir=tmp_path, times=Times())


def test_a_chunk_takes_its_time_and_its_layers_come_one_after_the_other(
    timed: LoadedModel, pool: torch.Tensor
) -> None:
    engine = prefill_engine(timed, pool, 0)
    tokens = np.arange(3, 3 + 300, dtype=np.int32)
    times = [time.monotonic()]
    assert engine.prefill_chunk(tokens[:256], 0, [], [2], want_logits=False) is None
    times.append(time.monotonic())
    seen: list[float] = []
    logits = engine.prefill_chunk(
        tokens[256:], 256, [2], [1], on_layer=lambda _: seen.append(time.monotonic())
    )
    times.append(time.monotonic())
    assert times[1] - times[0] >= CHUNK_S
    assert times[2] - times[1] >= LAST_S
    assert len(seen) == timed.config.num_layers
    assert seen[0] - times[1] < seen[-1] - times[1]
    assert logits is not None
    assert logits.shape == (timed.config.vocab_size,)


def test_blocks_show_their_tokens_and_their_place(timed: LoadedModel, pool: torch.Tensor) -> None:
    engine = prefill_engine(timed, pool, 0)
    tokens = np.full(256, 7, dtype=np.int32)
    engine.prefill_chunk(tokens, 0, [], [0], want_logits=False)
    engine.prefill_chunk(tokens, 256, [0], [1], want_logits=False)
    engine.prefill_chunk(tokens, 0, [], [2], want_logits=False)
    assert torch.equal(pool[0], pool[2])
    assert not torch.equal(pool[0], pool[1])


def test_a_chunk_that_nobody_wants_stops_between_layers(
    timed: LoadedModel, pool: torch.Tensor
) -> None:
    engine = prefill_engine(timed, pool, 0)
    with pytest.raises(Cancelled):
        engine.prefill_chunk(np.arange(3, 9, dtype=np.int32), 0, [], [0], is_cancelled=lambda: True)


def test_a_step_takes_its_time_and_gives_what_its_tokens_say(timed: LoadedModel) -> None:
    engine = decode_engine(timed, 64)
    for name in "ab":
        engine.add(name, 8)
    alone = engine.step([("a", 5, 0)])
    began_s = time.monotonic()
    both = engine.step([("b", 5, 0), ("a", 9, 1)])
    assert time.monotonic() - began_s >= 2 * STEP_S
    assert both.shape == (2, timed.config.vocab_size)
    assert torch.equal(both[0], alone[0])
    assert not torch.equal(both[1], both[0])
