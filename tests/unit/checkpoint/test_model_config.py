import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import read_gguf
from shared.checkpoint.locate import ModelSource, locate
from shared.checkpoint.model_config import load_model_config
from shared.checkpoint.rope_scaling import RopeScaling
from tests.support.gguf_builder import byte_level_metadata, llama_tensors, write_gguf

HF_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 7,
}


def hf_source(folder: Path, **changes: Any) -> ModelSource:
    (folder / "config.json").write_text(json.dumps(HF_CONFIG | changes))
    return ModelSource("m", "hf", path=folder)


def gguf_source(folder: Path, **changes: Any) -> ModelSource:
    metadata = byte_level_metadata() | {key.replace("__", "."): v for key, v in changes.items()}
    path = write_gguf(folder / "m.gguf", metadata, llama_tensors())
    return ModelSource("m", "gguf", path=path)


def test_presets_have_the_stated_shapes() -> None:
    tiny = load_model_config(locate("dummy:tiny"))
    assert (tiny.num_layers, tiny.hidden_size, tiny.num_heads, tiny.num_kv_heads) == (2, 64, 4, 2)
    assert (tiny.head_dim, tiny.intermediate_size, tiny.vocab_size) == (16, 128, 512)
    assert tiny.max_positions == 2048
    assert load_model_config(locate("dummy:small")).max_positions == 8192


def test_a_gguf_file_tells_its_shape(tmp_path: Path) -> None:
    config = load_model_config(gguf_source(tmp_path))
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (1, 4, 2)
    assert (config.head_dim, config.vocab_size, config.max_positions) == (4, 259, 512)
    assert config.tied_embeddings
    assert config.eos_token_ids == (257,)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"general__architecture": "mamba"}, "general.architecture = 'mamba'"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type = 'yarn'"),
        ({"llama__expert_count": 8}, "llama.expert_count = 8"),
    ],
)
def test_a_gguf_model_of_an_unsupported_kind_names_the_key(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        load_model_config(gguf_source(tmp_path, **change))


def test_scaled_rope_of_a_gguf_file_is_read(tmp_path: Path) -> None:
    linear = gguf_source(
        tmp_path, llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0
    )
    assert load_model_config(linear).rope_scaling == RopeScaling("linear", factor=4.0)
    tensors = llama_tensors() | {"rope_freqs.weight": np.array([1.0, 8.0], dtype=np.float32)}
    path = write_gguf(tmp_path / "llama3.gguf", byte_level_metadata(), tensors)
    config = load_model_config(ModelSource("m", "gguf", path=path))
    assert config.rope_scaling == RopeScaling("divisors", divisors=(1.0, 8.0))
    path.write_bytes(path.read_bytes()[:-28])
    with pytest.raises(CheckpointError, match=r"ends inside tensor rope_freqs\.weight"):
        load_model_config(ModelSource("m", "gguf", path=path))


def test_missing_gguf_metadata_is_named(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    del metadata["llama.block_count"]
    path = write_gguf(tmp_path / "m.gguf", metadata, llama_tensors())
    with pytest.raises(CheckpointError, match=r"no llama\.block_count"):
        load_model_config(ModelSource("m", "gguf", path=path))


@pytest.mark.parametrize("length", [0, 3, 20, 100, 2000])
def test_a_cut_off_gguf_file_is_one_clear_error(tmp_path: Path, length: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), llama_tensors())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"m\.gguf: not a"):
        read_gguf(path)


def test_another_gguf_version_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(), llama_tensors())
    raw = bytearray(path.read_bytes())
    raw[4] = 9
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="version 9"):
        read_gguf(path)


def test_a_config_json_tells_its_shape(tmp_path: Path) -> None:
    config = load_model_config(hf_source(tmp_path))
    assert (config.head_dim, config.num_kv_heads, config.rope_theta) == (16, 2, 10000.0)
    assert not config.tied_embeddings
    assert config.eos_token_ids == (7,)


def test_generation_config_tells_all_ends(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load_model_config(hf_source(tmp_path)).eos_token_ids == (7, 9)


def test_both_forms_of_rope_parameters_are_read(tmp_path: Path) -> None:
    older = load_model_config(hf_source(tmp_path, rope_theta=5e5))
    newer = load_model_config(
        hf_source(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    )
    assert older.rope_theta == newer.rope_theta == 5e5


def test_families_differ_in_bias_norm_and_window(tmp_path: Path) -> None:
    assert load_model_config(hf_source(tmp_path, model_type="qwen2")).has_qkv_bias
    assert load_model_config(hf_source(tmp_path, model_type="qwen3")).has_qk_norm
    mistral = hf_source(tmp_path, model_type="mistral", sliding_window=256)
    assert load_model_config(mistral).window_of(0) == 256
    unused = hf_source(tmp_path, model_type="qwen2", sliding_window=256, use_sliding_window=False)
    assert load_model_config(unused).window_of(0) is None


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"max_window_layers": 1}, [None, 256]),
        ({}, [None, None]),  # 28 layers see everything when nothing is said
        ({"layer_types": ["sliding_attention", "full_attention"]}, [256, None]),
    ],
)
def test_the_layers_that_slide_are_told_in_either_form(
    tmp_path: Path, changes: dict[str, Any], windows: list[int | None]
) -> None:
    source = hf_source(
        tmp_path, model_type="qwen2", sliding_window=256, use_sliding_window=True, **changes
    )
    config = load_model_config(source)
    assert [config.window_of(layer) for layer in range(2)] == windows


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope_type = 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type = 'longrope'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "'llama3' needs factor, it is None"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "'linear' needs factor, it is 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (
            {"model_type": "mistral", "sliding_window": "wide"},
            "sliding_window = 'wide'",
        ),
        (
            {"model_type": "mistral", "sliding_window": 9, "layer_types": ["chunked_attention"]},
            "layer_types has 1 entries of chunked_attention",
        ),
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_key_value_heads": 3}, "num_kv_heads 3"),
    ],
)
def test_a_config_json_that_is_not_supported_names_the_key(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        load_model_config(hf_source(tmp_path, **changes))


def test_a_broken_config_json_is_one_clear_error(tmp_path: Path) -> None:
    source = hf_source(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not readable as JSON"):
        load_model_config(source)
