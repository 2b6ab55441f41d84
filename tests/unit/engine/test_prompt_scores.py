"""Log probabilities of a prompt's tokens, against transformers and against plain arithmetic."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.engine.errors import Cancelled
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.prompt_scores import ROWS, PromptScores, ScoreWish, score_rows
from shared.engine.token_order import largest
from tests.support.engine import EngineBench, random_tokens
from tests.support.family_checkpoints import (
    FAMILIES,
    SCORED_FAMILIES,
    family_prompt,
    write_family,
)

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
ANSWERS: dict[str, Any] = json.loads((GOLDENS / "prompt_logprobs.json").read_text())["answers"]
GRID = 256


def scores_of(bench: EngineBench, prompt: list[int], num_top: int) -> PromptScores:
    """Of all tokens of the prompt but its first, chunk by chunk."""
    ids, grid = np.array(prompt, dtype=np.int32), bench.loaded.grid_tokens
    found: list[PromptScores] = []
    for start in range(0, len(ids), grid):
        targets = ids[start + 1 : start + grid + 1]
        if len(targets):
            slots = list(range(bench.num_blocks(len(ids))))
            bench.chunk(ids, start, slots, ScoreWish(targets, num_top), found.append)
    return PromptScores(
        np.concatenate([one.logprobs for one in found]),
        np.concatenate([one.top_tokens for one in found]),
        np.concatenate([one.top_logprobs for one in found]),
        sum(one.seconds for one in found),
    )


@pytest.mark.parametrize("name", SCORED_FAMILIES)
def test_a_prompt_has_the_logprobs_of_transformers(
    name: str, tmp_path: Path, engine_cache: Path
) -> None:
    golden = ANSWERS[name]
    folder = write_family(FAMILIES[name], tmp_path / name)
    loaded = load_model(str(folder), cache_dir=engine_cache, block_tokens=64)
    prompt = family_prompt(FAMILIES[name])
    bench = EngineBench(loaded, num_slots=-(-len(prompt) // 64))
    scores = scores_of(bench, prompt, 1)
    assert len(scores.logprobs) == len(prompt) - 1
    assert scores.logprobs.tolist() == pytest.approx(golden["logprobs"], abs=1e-4)
    assert scores.top_logprobs[:, 0].tolist() == pytest.approx(
        golden["likeliest_logprobs"], abs=1e-4
    )
    assert golden["smallest_gap"] > 2e-4  # else one rounding would decide
    assert scores.top_tokens[:, 0].tolist() == golden["likeliest"]


def test_scoring_changes_neither_the_kv_nor_token_0(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=2)
    ids = np.array(random_tokens(GRID, seed=1), dtype=np.int32)
    plain = bench.chunk(ids, 0, [0])
    scored = bench.chunk(ids, 0, [1], ScoreWish(ids[1:], 2), lambda _: None)
    assert plain is not None
    assert scored is not None
    assert torch.equal(plain, scored)
    assert torch.equal(bench.pool[0], bench.pool[1])


def test_a_score_is_the_logprob_that_generation_gives(tiny: LoadedModel) -> None:
    """A prompt that ends before a token chooses it with the log probability it is scored with."""
    bench = EngineBench(tiny, num_slots=4)
    prompt = random_tokens(2 * GRID + 9, seed=2)
    scores = scores_of(bench, prompt, 1)
    for end in (1, 2, 40, GRID, GRID + 1, 2 * GRID + 8):
        logits = bench.prefill(prompt[:end], [0, 1, 2, 3])
        expected = logits.log_softmax(dim=0)
        assert scores.logprobs[end - 1] == pytest.approx(float(expected[prompt[end]]), abs=1e-5)
        assert scores.top_tokens[end - 1, 0] == int(expected.argmax())


def test_logits_of_a_part_are_not_wanted_for_its_scores(tiny: LoadedModel) -> None:
    bench = EngineBench(tiny, num_slots=1)
    ids = np.array(random_tokens(GRID, seed=1), dtype=np.int32)
    found: list[PromptScores] = []
    logits = bench.prefill_engine.prefill_chunk(
        ids, 0, [], [0], want_logits=False, wish=ScoreWish(ids[1:], 0), on_scores=found.append
    )
    assert logits is None
    assert found[0].logprobs.shape == (GRID - 1,)
    assert found[0].top_tokens.shape == found[0].top_logprobs.shape == (GRID - 1, 0)


@pytest.mark.parametrize("num_rows", [1, 2, ROWS, ROWS + 1, 3 * ROWS - 1])
@pytest.mark.parametrize("num_top", [0, 1, 3, 12])
def test_equal_logits_are_in_the_order_of_tokens(num_rows: int, num_top: int) -> None:
    """Few different values, so that many places have equals at the border."""
    random = np.random.default_rng(num_rows)
    table = random.integers(0, 4, (num_rows, 12)).astype(np.float32)
    targets = random.integers(0, 12, num_rows).astype(np.int32)
    scores = score_table(table, ScoreWish(targets, num_top), min_rows=2)
    expected = torch.from_numpy(table).log_softmax(dim=1).numpy()
    for row in range(num_rows):
        order = largest(table[row], 12)[:num_top]
        assert scores.top_tokens[row].tolist() == order.tolist()
        assert scores.logprobs[row] == pytest.approx(expected[row, targets[row]], abs=1e-6)
        # The very same number, by which a client sees that the token is the likeliest one.
        for token, value in zip(scores.top_tokens[row], scores.top_logprobs[row], strict=True):
            assert token != targets[row] or value == scores.logprobs[row]


def test_scoring_stops_between_slices() -> None:
    asked: list[bool] = []

    def is_cancelled() -> bool:
        asked.append(True)
        return len(asked) > 1

    table = np.zeros((2 * ROWS, 4), np.float32)
    wish = ScoreWish(np.zeros(2 * ROWS, np.int32), 1)
    with pytest.raises(Cancelled):
        score_rows(torch.from_numpy(table), wish, lambda rows: rows, is_cancelled=is_cancelled)
    assert len(asked) == 2


def score_table(table: npt.NDArray[np.float32], wish: ScoreWish, *, min_rows: int) -> PromptScores:
    """Rows that are logits already, given out as many at a time as an engine must have."""

    def logits_of(rows: torch.Tensor) -> torch.Tensor:
        assert min_rows <= len(rows) <= ROWS
        return rows

    hidden = torch.from_numpy(table)
    return score_rows(hidden, wish, logits_of, min_rows=min_rows, is_cancelled=lambda: False)
