"""Every family against answers that transformers computed (tests/support/make_goldens.py)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.logprobs import token_logprobs
from shared.engine.sampler import Sampler
from shared.engine.sampling_params import SamplingParams
from tests.support.engine import EngineBench
from tests.support.family_checkpoints import FAMILIES, family_prompt, write_family

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
ANSWERS: dict[str, Any] = json.loads((GOLDENS / "families.json").read_text())["answers"]
REPETITION_PENALTY = 1.3


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(name: str, engine_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = write_family(FAMILIES[name], tmp_path_factory.mktemp("family") / name)
    return load_model(str(folder), cache_dir=engine_cache, block_tokens=64)


def answer_of(
    bench: EngineBench, prompt: Sequence[int], params: SamplingParams, num_tokens: int
) -> tuple[list[int], list[torch.Tensor]]:
    """Tokens and the logits that they were chosen from; an end token ends nothing."""
    slots = list(range(bench.num_blocks(len(prompt))))
    logits = [bench.prefill(prompt, slots)]
    decode = DecodeEngine(bench.loaded.model, bench.layout, len(prompt) + num_tokens)
    bench.join(decode, "only", slots, len(prompt), num_tokens)
    sampler = Sampler(params, prompt)
    answer = [sampler.choose(logits[0].numpy(), len(prompt)).token]
    while len(answer) < num_tokens:
        position = len(prompt) + len(answer) - 1
        logits.append(decode.step([("only", answer[-1], position)])[0])
        answer.append(sampler.choose(logits[-1].numpy(), position + 1).token)
    return answer, logits


def test_greedy_tokens_and_logprobs_are_those_of_transformers(
    name: str, loaded: LoadedModel
) -> None:
    golden = ANSWERS[name]
    assert golden["smallest_gap"] > 2e-4  # else one rounding would decide
    prompt = family_prompt(FAMILIES[name])
    bench = EngineBench(loaded, num_slots=bench_slots(loaded, prompt))
    answer, logits = answer_of(bench, prompt, SamplingParams(temperature=0.0), 256)
    assert answer == golden["answer"]
    for row, expected in zip(logits, golden["logprobs"], strict=False):
        found = token_logprobs(row.numpy(), answer[0], len(expected))
        assert [str(token) for token, _ in found.top] == list(expected)
        assert [value for _, value in found.top] == pytest.approx(list(expected.values()), abs=1e-4)


def test_a_repetition_penalty_gives_the_tokens_of_transformers(
    name: str, loaded: LoadedModel
) -> None:
    golden = ANSWERS[name]
    prompt = family_prompt(FAMILIES[name])
    bench = EngineBench(loaded, num_slots=bench_slots(loaded, prompt))
    params = SamplingParams(temperature=0.0, repetition_penalty=REPETITION_PENALTY)
    assert answer_of(bench, prompt, params, 64)[0] == golden["penalised"]


def bench_slots(loaded: LoadedModel, prompt: Sequence[int]) -> int:
    return -(-len(prompt) // loaded.layout.block_tokens)
