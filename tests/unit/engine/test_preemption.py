"""A sequence leaves the device cache at any position and comes back: not a bit is different."""

import pytest
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.errors import EngineError
from shared.engine.loaded_model import LoadedModel
from tests.support.engine import EngineBench, random_tokens

MAX_TOKENS = 12


@pytest.fixture(params=["tiny", "tiny_small_blocks", "tiny_bf16", "tiny_torch", "tiny_torch_bf16"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model: LoadedModel = request.getfixturevalue(request.param)
    return model


def put_out_and_back(decode: DecodeEngine, room: int, piece_tokens: int = 50) -> None:
    """As a worker does it: out, somebody else there meanwhile, back in pieces."""
    kv = decode.saved("s")
    decode.remove("s")
    decode.add("other", decode.capacity_tokens)
    decode.remove("other")
    decode.add("s", room)
    for start in range(0, kv.shape[2], piece_tokens):
        piece = kv[None, :, :, start : start + piece_tokens]
        decode.load_block("s", piece, 0, start, piece.shape[3])


@pytest.mark.parametrize("prompt_tokens", [1, 63, 97])
def test_preempted_at_every_position_an_answer_has_the_same_logits(
    loaded: LoadedModel, prompt_tokens: int
) -> None:
    bench = EngineBench(loaded, num_slots=8)
    prompt = random_tokens(prompt_tokens, seed=prompt_tokens)
    slots = list(range(bench.num_blocks(len(prompt))))
    first = int(bench.prefill(prompt, slots).argmax())

    def answer(preempted_at: set[int]) -> list[torch.Tensor]:
        decode = DecodeEngine(loaded.model, loaded.layout, capacity_tokens=400)
        bench.join(decode, "s", slots, len(prompt), room=MAX_TOKENS)
        token, found = first, []
        for position in range(len(prompt), len(prompt) + MAX_TOKENS):
            if position - len(prompt) in preempted_at:
                put_out_and_back(decode, len(prompt) + MAX_TOKENS)
            found.append(decode.step([("s", token, position)])[0])
            token = int(found[-1].argmax())
        return found

    undisturbed = answer(set())
    for at in range(MAX_TOKENS):
        assert all(map(torch.equal, answer({at}), undisturbed)), f"preempted at {at}"
    assert all(map(torch.equal, answer(set(range(MAX_TOKENS))), undisturbed))


def test_what_is_saved_is_what_was_loaded_and_computed(loaded: LoadedModel) -> None:
    bench = EngineBench(loaded, num_slots=8)
    prompt = random_tokens(loaded.grid_tokens + 30, seed=3)
    slots = list(range(bench.num_blocks(len(prompt))))
    bench.prefill(prompt, slots)
    decode = DecodeEngine(loaded.model, loaded.layout, capacity_tokens=2000)
    bench.join(decode, "s", slots, len(prompt), room=10)
    assert torch.equal(decode.saved("s"), bench.kv(slots, len(prompt)))
    decode.step([("s", 7, len(prompt))])
    after = decode.saved("s")
    assert after.shape[2] == len(prompt) + 1
    assert torch.equal(after[:, :, :-1], bench.kv(slots, len(prompt)))
    assert after[:, :, -1].abs().sum() > 0


def test_room_that_grows_step_by_step_changes_nothing(loaded: LoadedModel) -> None:
    bench = EngineBench(loaded, num_slots=8)
    prompt = random_tokens(60, seed=5)
    slots = list(range(bench.num_blocks(len(prompt))))
    bench.prefill(prompt, slots)

    def answer(*, grows: bool) -> list[torch.Tensor]:
        decode = DecodeEngine(loaded.model, loaded.layout, capacity_tokens=400)
        bench.join(decode, "s", slots, len(prompt), room=1 if grows else MAX_TOKENS)
        found = []
        for position in range(len(prompt), len(prompt) + MAX_TOKENS):
            if grows:
                decode.grow("s", position + 1)
                assert decode.used_tokens == position + 1
            found.append(decode.step([("s", position % 500, position)])[0])
        decode.remove("s")
        assert decode.used_tokens == 0
        return found

    assert all(map(torch.equal, answer(grows=True), answer(grows=False)))


def test_more_room_than_there_is_is_refused(tiny: LoadedModel) -> None:
    decode = DecodeEngine(tiny.model, tiny.layout, capacity_tokens=100)
    decode.add("a", 60)
    decode.add("b", 30)
    decode.grow("a", 70)
    with pytest.raises(EngineError, match="1 more tokens do not fit, 0 are free"):
        decode.grow("a", 71)
    with pytest.raises(EngineError, match="it has 70"):
        decode.grow("a", 69)
    assert decode.used_tokens == 100
