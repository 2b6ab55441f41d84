from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.checkpoint.errors import CheckpointError
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.weights_file import MappedWeights
from tests.support.engine import EngineBench
from tests.support.gguf_builder import byte_level_metadata, llama_tensors, write_gguf

Raw = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]
Make = Callable[[np.random.Generator, int], tuple[Raw, Values]]


def load(folder: Path, cache_dir: Path) -> LoadedModel:
    path = write_gguf(folder / "m.gguf", byte_level_metadata(), llama_tensors())
    return load_model(str(path), cache_dir=cache_dir)


def test_rows_of_query_and_key_are_put_in_the_order_of_split_halves(
    tmp_path: Path, cache_dir: Path
) -> None:
    load(tmp_path, cache_dir)
    weights = MappedWeights(next((cache_dir / "weights").glob("*.safetensors")))
    qkv = weights.tensor("layers.0.qkv")
    stored = {name: torch.from_numpy(value) for name, value in llama_tensors().items()}
    # A head of 4 is stored as (0, 2, 1, 3): pairs of the interleaved form.
    order = torch.tensor([0, 2, 1, 3])
    query = stored["blk.0.attn_q.weight"].view(4, 4, 16)[:, order].reshape(16, 16)
    key = stored["blk.0.attn_k.weight"].view(2, 4, 16)[:, order].reshape(8, 16)
    assert torch.equal(qkv, torch.cat([query, key, stored["blk.0.attn_v.weight"]]))


def test_a_gguf_file_is_served(tmp_path: Path, cache_dir: Path) -> None:
    bench = EngineBench(load(tmp_path, cache_dir), num_slots=1)
    assert len(bench.greedy([1, 2, 3], [0], max_tokens=4)) >= 1


_GROUP = 32


def f16(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    values = random.normal(size=(count, 1)).astype("<f2")
    return values.view(np.uint8).reshape(count, 2), values.astype(np.float32)


def nibbles(raw: Raw) -> Values:
    """The low halves of 16 bytes, then the high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def stored_q8_0(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    raw_scale, scale = f16(random, count)
    numbers = random.integers(-128, 128, (count, _GROUP), dtype=np.int8)
    return np.concatenate([raw_scale, numbers.view(np.uint8)], axis=1), scale * numbers


def stored_q4_0(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    raw_scale, scale = f16(random, count)
    halves = random.integers(0, 256, (count, _GROUP // 2), dtype=np.uint8)
    return np.concatenate([raw_scale, halves], axis=1), scale * (nibbles(halves) - 8)


def stored_q4_1(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    raw_scale, scale = f16(random, count)
    raw_least, least = f16(random, count)
    halves = random.integers(0, 256, (count, _GROUP // 2), dtype=np.uint8)
    return np.concatenate([raw_scale, raw_least, halves], axis=1), scale * nibbles(halves) + least


def stored_f16(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    raw, values = f16(random, count * _GROUP)
    return raw, values


def stored_bf16(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    high = random.normal(size=(count, _GROUP)).astype(np.float32).view(np.uint32) >> 16
    return high.astype("<u2").view(np.uint8), (high << 16).astype(np.uint32).view(np.float32)


def stored_f32(random: np.random.Generator, count: int) -> tuple[Raw, Values]:
    values = random.normal(size=(count, _GROUP)).astype("<f4")
    return values.view(np.uint8), values


@pytest.mark.parametrize(
    ("ggml_type", "make"),
    [
        (0, stored_f32),
        (1, stored_f16),
        (2, stored_q4_0),
        (3, stored_q4_1),
        (8, stored_q8_0),
        (30, stored_bf16),
    ],
)
def test_stored_numbers_become_the_values_that_their_format_says(
    tmp_path: Path, cache_dir: Path, ggml_type: int, make: Make
) -> None:
    """Scales and bytes at random; the values by the format's own formula."""
    metadata = byte_level_metadata()
    metadata |= {"llama.embedding_length": _GROUP, "llama.feed_forward_length": 2 * _GROUP}
    shapes = {
        name: tuple(2 * size if size in (16, 32) else size for size in tensor.shape)
        for name, tensor in llama_tensors().items()
    }
    shapes |= {f"blk.0.attn_{part}.weight": (16, _GROUP) for part in "kv"}
    tensors = {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    random = np.random.default_rng(ggml_type)
    stored, expected = {}, {}
    for name in ("token_embd.weight", "blk.0.ffn_down.weight", "blk.0.attn_v.weight"):
        raw, values = make(random, tensors[name].size // _GROUP)
        stored[name] = ggml_type, raw.tobytes()
        expected[name] = torch.from_numpy(values.reshape(shapes[name]))
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors, stored=stored)
    load_model(str(path), cache_dir=cache_dir, linear_mode="plain")
    weights = MappedWeights(next((cache_dir / "weights").glob("*.safetensors")))
    assert torch.equal(weights.tensor("embeddings"), expected["token_embd.weight"])
    assert torch.equal(weights.tensor("layers.0.down"), expected["blk.0.ffn_down.weight"])
    assert torch.equal(weights.tensor("layers.0.qkv")[-16:], expected["blk.0.attn_v.weight"])


def test_a_tensor_of_another_shape_is_named(tmp_path: Path, cache_dir: Path) -> None:
    tensors = llama_tensors()
    tensors["blk.0.attn_v.weight"] = np.zeros((4, 16), dtype=np.float32)
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), tensors)
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_v\.weight \[4, 16\].*\[32, 16\]"):
        load_model(str(path), cache_dir=cache_dir)


def test_an_unsupported_quantisation_names_the_tensor_and_its_type(
    tmp_path: Path, cache_dir: Path
) -> None:
    q4_k = 12
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), llama_tensors(), q4_k)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is quantised as Q4_K"):
        load_model(str(path), cache_dir=cache_dir)


def test_a_missing_tensor_is_named(tmp_path: Path, cache_dir: Path) -> None:
    tensors = llama_tensors()
    del tensors["blk.0.ffn_up.weight"]
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), tensors)
    with pytest.raises(CheckpointError, match=r"no tensor blk\.0\.ffn_up\.weight"):
        load_model(str(path), cache_dir=cache_dir)


def test_a_file_that_ends_inside_its_weights_is_one_clear_error(
    tmp_path: Path, cache_dir: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), llama_tensors())
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        load_model(str(path), cache_dir=cache_dir)
