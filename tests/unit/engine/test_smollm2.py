"""The packaged real model against transformers in float32 (tests/support/make_goldens.py)."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import PACKAGED_MODEL, locate
from shared.checkpoint.text_model import TextModel, load_text_model
from shared.engine.decode import DecodeEngine
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.logprobs import token_logprobs
from shared.engine.self_test import check_equalities
from tests.support.engine import EngineBench

GOLDENS = Path(__file__).resolve().parents[2] / "goldens" / "smollm2.json"


@pytest.fixture(scope="module")
def text_model() -> TextModel:
    try:
        locate(PACKAGED_MODEL)
    except CheckpointError as error:
        pytest.skip(str(error))
    return load_text_model(PACKAGED_MODEL)


@pytest.fixture(scope="module")
def smollm2(text_model: TextModel, engine_cache: Path) -> Iterator[LoadedModel]:
    # Its converted weights are large: not kept longer than they are used.
    with tempfile.TemporaryDirectory() as cache_dir:
        (Path(cache_dir) / "kernels").symlink_to(engine_cache / "kernels")
        yield load_model(PACKAGED_MODEL, cache_dir=Path(cache_dir), threads=1)


def prompt(text_model: TextModel, question: str) -> list[int]:
    text = text_model.chat_template.render([{"role": "user", "content": question}])
    return text_model.tokenizer.encode(text)


@pytest.mark.timeout(120)
def test_greedy_answers_are_those_of_transformers_and_a_hit_keeps_the_bits(
    text_model: TextModel, smollm2: LoadedModel
) -> None:
    bench = EngineBench(smollm2, num_slots=4)
    for question, tokens, text in (
        (
            "What is the capital of France?",
            [504, 3575, 282, 4649, 314, 7042, 30, 2],
            "The capital of France is Paris.",
        ),
        (
            "Write a short poem about the sea.",
            [504, 6147, 282, 260, 5065, 28, 253, 14886],
            "The waves of the ocean, a tapestry",
        ),
    ):
        assert bench.greedy(prompt(text_model, question), [2], max_tokens=8) == tokens
        assert text_model.tokenizer.decode(tokens) == text

    story = "The harbour lies on the north side of the river. " * 24
    ids = prompt(text_model, story)
    assert 256 < len(ids) < 512
    cold = bench.prefill(ids, [0, 1])
    bench.prefill([*ids[:256], 5, 6, 7], [3, 2])
    assert torch.equal(bench.prefill(ids, [3, 1], cached_tokens=256), cold)
    assert torch.equal(bench.pool[3], bench.pool[0])
    assert check_equalities(smollm2) == []


@pytest.mark.timeout(240)
def test_long_greedy_answers_and_their_logprobs_are_those_of_transformers(
    text_model: TextModel, smollm2: LoadedModel
) -> None:
    """Three chats, 256 tokens each, decoded together; an end token ends nothing."""
    goldens = json.loads(GOLDENS.read_text())["answers"]
    bench = EngineBench(smollm2, num_slots=1)
    decode = DecodeEngine(smollm2.model, smollm2.layout, capacity_tokens=3 * 512)
    answers: list[list[int]] = []
    for number, golden in enumerate(goldens):
        ids = prompt(text_model, golden["question"])
        assert ids == golden["prompt"]
        answers.append([int(bench.prefill(ids, [0]).argmax())])
        bench.join(decode, str(number), [0], len(ids), room=256)
    for step in range(1, 256):
        rows = decode.step(
            [
                (str(number), answer[-1], len(goldens[number]["prompt"]) + step - 1)
                for number, answer in enumerate(answers)
            ]
        )
        for answer, row, golden in zip(answers, rows, goldens, strict=True):
            answer.append(int(row.argmax()))
            if step < len(golden["logprobs"]):
                expected = golden["logprobs"][step]
                found = token_logprobs(row.numpy(), answer[-1], len(expected)).top
                assert [str(token) for token, _ in found] == list(expected)
                assert [value for _, value in found] == pytest.approx(
                    list(expected.values()), abs=1e-4
                )
    assert answers == [golden["answer"] for golden in goldens]
