from pathlib import Path

import pytest
import torch

from shared.engine import self_test
from shared.engine.loaded_model import LoadedModel
from shared.engine.model import DecoderLayer
from shared.engine.self_test import check_equalities, run_self_test


@pytest.mark.parametrize(
    "name", ["tiny", "tiny_small_blocks", "tiny_bf16", "tiny_torch", "tiny_torch_bf16"]
)
def test_all_equalities_hold_here(name: str, request: pytest.FixtureRequest) -> None:
    assert check_equalities(request.getfixturevalue(name)) == []


def test_kernels_that_depend_on_the_batch_are_found(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_finish = DecoderLayer.finish

    def finish(self: DecoderLayer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return true_finish(self, hidden, attended) * (1 + 1e-6 * len(hidden))

    monkeypatch.setattr(DecoderLayer, "finish", finish)
    assert check_equalities(tiny) == [self_test._BATCH]


def test_kernels_that_are_not_repeatable_are_found(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_finish = DecoderLayer.finish

    def finish(self: DecoderLayer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return true_finish(self, hidden, attended) + 1e-6 * torch.rand_like(hidden)

    monkeypatch.setattr(DecoderLayer, "finish", finish)
    failed = check_equalities(tiny)
    assert {self_test._REPEAT, self_test._HIT, self_test._ONE_TOKEN} <= set(failed)


def test_the_answer_is_remembered(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["something differs"]])
    monkeypatch.setattr(self_test, "check_equalities", lambda loaded: next(answers))
    assert run_self_test(tiny, tmp_path) == ["something differs"]
    assert run_self_test(tiny, tmp_path) == ["something differs"]


@pytest.mark.parametrize("left", [b"", b"[", b"\xff"])
def test_a_file_without_an_answer_is_none(
    left: bytes, tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["something differs"], []])
    monkeypatch.setattr(self_test, "check_equalities", lambda loaded: next(answers))
    assert run_self_test(tiny, tmp_path) == ["something differs"]
    [remembered] = (tmp_path / "self-test").glob("*.json")
    remembered.write_bytes(left)
    assert run_self_test(tiny, tmp_path) == []
    assert remembered.read_text() == "[]"
