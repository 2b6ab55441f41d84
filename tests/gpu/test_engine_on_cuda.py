"""The engine on a CUDA device: the tokens of the CPU, and the promises of mode `exact`."""

import numpy as np
import pytest
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.kv_layout import DtypeName
from shared.engine.loaded_model import LoadedModel
from shared.engine.self_test import check_equalities
from tests.gpu.conftest import Models
from tests.support.engine import EngineBench, random_tokens

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(300)]
NUM_SLOTS = 24


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request: pytest.FixtureRequest, models: Models) -> LoadedModel:
    dtype: DtypeName = request.param
    return models.load("cuda", dtype)


def test_greedy_tokens_are_those_of_the_cpu_in_float32(models: Models) -> None:
    prompt = random_tokens(700, seed=1)
    answers = [
        EngineBench(models.load(device), NUM_SLOTS).greedy(prompt, [5, 2, 9], max_tokens=256)
        for device in ("cpu", "cuda")
    ]
    assert answers[1] == answers[0]


def test_kv_in_the_pool_is_that_of_the_cpu_up_to_rounding(models: Models) -> None:
    prompt = random_tokens(600, seed=2)
    kv = []
    for device in ("cpu", "cuda"):
        bench = EngineBench(models.load(device), NUM_SLOTS)
        bench.prefill(prompt, [0, 1, 2])
        kv.append(bench.kv([0, 1, 2], len(prompt)))
    torch.testing.assert_close(kv[1], kv[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tail", [1, 2, 100])
def test_a_hit_has_the_bits_of_a_cold_run(loaded: LoadedModel, tail: int) -> None:
    grid = loaded.grid_tokens
    prompt = random_tokens(3 * grid + tail, seed=1)
    bench = EngineBench(loaded, NUM_SLOTS)
    blocks = bench.num_blocks(len(prompt))
    cold_slots = list(range(blocks))
    cold = bench.prefill(prompt, cold_slots)
    for cached in range(grid, len(prompt), grid):
        slots = list(reversed(range(NUM_SLOTS)))[:blocks]
        bench.prefill(prompt[:cached] + random_tokens(50, seed=cached), slots)
        assert torch.equal(bench.prefill(prompt, slots, cached_tokens=cached), cold)
        assert torch.equal(bench.kv(slots, len(prompt)), bench.kv(cold_slots, len(prompt)))


def test_the_self_test_finds_nothing(loaded: LoadedModel) -> None:
    assert check_equalities(loaded) == []


def test_a_batch_gives_the_tokens_of_single_sequences(loaded: LoadedModel) -> None:
    bench = EngineBench(loaded, NUM_SLOTS)
    prompts = [random_tokens(100 + 61 * number, seed=number) for number in range(6)]
    decode = DecodeEngine(loaded.model, loaded.layout, 6000)
    names = [str(number) for number in range(6)]
    alone, answers = [], []
    for number, prompt in enumerate(prompts):
        slots = list(range(3 * number, 3 * number + 3))
        alone.append(bench.greedy(prompt, slots, max_tokens=40))
        bench.join(decode, names[number], slots, len(prompt), room=40)
        answers.append(alone[number][:1])
    for step in range(39):
        batch = [
            (name, answer[-1], len(prompt) + step)
            for name, answer, prompt in zip(names, answers, prompts, strict=True)
        ]
        logits = decode.step(batch)
        for answer, token in zip(answers, logits.argmax(-1).tolist(), strict=True):
            answer.append(token)
    assert answers == alone


def test_mode_fast_gives_nearly_the_logits_of_exact(models: Models) -> None:
    """Batched attention or FlashInfer, whichever is there."""
    logits = []
    for mode in ("exact", "fast"):
        loaded = models.load("cuda", "bfloat16", mode)  # type: ignore[arg-type]
        bench = EngineBench(loaded, NUM_SLOTS)
        prompt = random_tokens(300, seed=3)
        bench.prefill(prompt, [0])
        decode = DecodeEngine(loaded.model, loaded.layout, 2000)
        for name in ("a", "b"):
            bench.join(decode, name, [0], 300, room=2)
        logits.append(decode.step([("a", 5, 300), ("b", 9, 300)]))
    torch.testing.assert_close(logits[1], logits[0], rtol=0.1, atol=0.2)


def test_layers_arrive_in_the_pool_in_order_and_whole(loaded: LoadedModel) -> None:
    grid = loaded.grid_tokens
    tokens = np.array(random_tokens(2 * grid, seed=4), dtype=np.int32)
    expected = EngineBench(loaded, 2)
    expected.prefill(tokens.tolist(), [0, 1])
    bench = EngineBench(loaded, 2)
    seen: list[tuple[int, bool]] = []
    for chunk in (0, 1):
        seen.clear()

        def on_layer(layer: int, slot: int = chunk) -> None:
            is_whole = torch.equal(bench.pool[slot, layer], expected.pool[slot, layer])
            seen.append((layer, is_whole))

        bench.prefill_engine.prefill_chunk(
            tokens[chunk * grid : (chunk + 1) * grid],
            chunk * grid,
            [0][:chunk],
            [chunk],
            on_layer=on_layer,
            want_logits=False,
        )
        assert seen == [(layer, True) for layer in range(loaded.layout.num_layers)]


def test_the_format_names_the_device(loaded: LoadedModel, models: Models) -> None:
    own, cpu = loaded.kv_format, models.load("cpu", loaded.layout.dtype).kv_format
    assert own.device.startswith("cuda sm_")
    assert own.root() != cpu.root()
