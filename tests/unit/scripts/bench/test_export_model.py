"""What is exported must be the same model: our own readers read it back."""

from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.bench.export_model import export_gguf, export_hf
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import read_gguf
from shared.checkpoint.locate import ModelSource, locate
from shared.checkpoint.model_config import load_model_config
from shared.engine.kv_layout import TORCH_DTYPES, DtypeName
from shared.engine.weight_sources import read_weights
from tests.support.gguf_builder import byte_level_metadata, llama_tensors, write_gguf


@pytest.fixture
def gguf(tmp_path: Path) -> ModelSource:
    path = write_gguf(tmp_path / "source.gguf", byte_level_metadata(), llama_tensors())
    return locate(str(path))


def weights(source: ModelSource, dtype: DtypeName) -> dict[str, torch.Tensor]:
    return dict(read_weights(source, load_model_config(source), TORCH_DTYPES[dtype]))


def assert_same_weights(one: ModelSource, other: ModelSource, dtype: DtypeName) -> None:
    expected, got = weights(one, dtype), weights(other, dtype)
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_model_is_the_same_as_a_hugging_face_folder(
    gguf: ModelSource, tmp_path: Path, dtype: DtypeName
) -> None:
    export_hf(gguf, dtype, tmp_path / "hf")
    exported = locate(str(tmp_path / "hf"))
    assert load_model_config(exported) == load_model_config(gguf)
    assert_same_weights(gguf, exported, dtype)


def test_a_dummy_model_is_the_same_as_a_hugging_face_folder(tmp_path: Path) -> None:
    source = locate("dummy:tiny")
    export_hf(source, "float32", tmp_path / "hf")
    # A dummy's tokenizer is made by code and has no file.
    exported = ModelSource(name="hf", kind="hf", path=tmp_path / "hf")
    assert load_model_config(exported) == load_model_config(source)
    assert_same_weights(source, exported, "float32")


def test_a_gguf_export_keeps_metadata_and_tokenizer(gguf: ModelSource, tmp_path: Path) -> None:
    export_gguf(gguf, "float32", tmp_path / "out.gguf")
    exported = locate(str(tmp_path / "out.gguf"))
    before, after = read_gguf(gguf.file_path), read_gguf(exported.file_path)
    assert {name: after.metadata[name] for name in before.metadata} == dict(before.metadata)
    assert_same_weights(gguf, exported, "float32")


def test_a_bf16_gguf_holds_rounded_matrices_and_exact_vectors(
    gguf: ModelSource, tmp_path: Path
) -> None:
    export_gguf(gguf, "bfloat16", tmp_path / "out.gguf")
    exported = weights(locate(str(tmp_path / "out.gguf")), "float32")
    for name, tensor in weights(gguf, "float32").items():
        expected = tensor if tensor.ndim == 1 else tensor.bfloat16().float()
        np.testing.assert_array_equal(exported[name].numpy(), expected.numpy(), name)


def test_only_a_gguf_model_can_be_written_as_gguf(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="only a GGUF model"):
        export_gguf(locate("dummy:tiny"), "float32", tmp_path / "out.gguf")
