from pathlib import Path

import pytest
import torch

from shared.checkpoint.errors import CheckpointError
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.weights_file import MappedWeights
from tests.support.engine import EngineBench
from tests.support.gguf_builder import byte_level_metadata, llama_tensors, write_gguf


def load(folder: Path) -> LoadedModel:
    path = write_gguf(folder / "m.gguf", byte_level_metadata(), llama_tensors())
    return load_model(str(path), cache_dir=folder / "cache")


def test_rows_of_query_and_key_are_put_in_the_order_of_split_halves(tmp_path: Path) -> None:
    load(tmp_path)
    weights = MappedWeights(next((tmp_path / "cache" / "weights").glob("*.safetensors")))
    qkv = weights.tensor("layers.0.qkv")
    stored = {name: torch.from_numpy(value) for name, value in llama_tensors().items()}
    # A head of 4 is stored as (0, 2, 1, 3): pairs of the interleaved form.
    order = torch.tensor([0, 2, 1, 3])
    query = stored["blk.0.attn_q.weight"].view(4, 4, 16)[:, order].reshape(16, 16)
    key = stored["blk.0.attn_k.weight"].view(2, 4, 16)[:, order].reshape(8, 16)
    assert torch.equal(qkv, torch.cat([query, key, stored["blk.0.attn_v.weight"]]))


def test_a_gguf_file_is_served(tmp_path: Path) -> None:
    bench = EngineBench(load(tmp_path), num_slots=1)
    assert len(bench.greedy([1, 2, 3], [0], max_tokens=4)) >= 1


def test_an_unsupported_quantisation_names_the_tensor_and_its_type(tmp_path: Path) -> None:
    q4_k = 12
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), llama_tensors(), q4_k)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is quantised as Q4_K"):
        load_model(str(path), cache_dir=tmp_path / "cache")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["blk.0.ffn_up.weight"]
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), tensors)
    with pytest.raises(CheckpointError, match=r"no tensor blk\.0\.ffn_up\.weight"):
        load_model(str(path), cache_dir=tmp_path / "cache")


def test_a_file_that_ends_inside_its_weights_is_one_clear_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), llama_tensors())
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        load_model(str(path), cache_dir=tmp_path / "cache")
