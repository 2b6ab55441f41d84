import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shared.checkpoint.byte_tokenizer import build_byte_tokenizer
from shared.checkpoint.errors import CheckpointError
from shared.engine.errors import EngineError
from shared.engine.kv_layout import KvLayout, view_pool
from shared.engine.loaded_model import LoadedModel, load_model
from tests.support.engine import EngineBench, random_tokens

HF_CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": [256, 258],
}


def hf_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"model.embed_tokens.weight": (512, 64), "model.norm.weight": (64,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (64,),
            prefix + "post_attention_layernorm.weight": (64,),
            prefix + "self_attn.q_proj.weight": (128, 64),
            prefix + "self_attn.k_proj.weight": (64, 64),
            prefix + "self_attn.v_proj.weight": (64, 64),
            prefix + "self_attn.o_proj.weight": (64, 128),
            prefix + "self_attn.q_norm.weight": (32,),
            prefix + "self_attn.k_norm.weight": (32,),
            prefix + "mlp.gate_proj.weight": (128, 64),
            prefix + "mlp.up_proj.weight": (128, 64),
            prefix + "mlp.down_proj.weight": (64, 128),
        }
    return {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()
    }


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "small-qwen3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF_CONFIG))
    build_byte_tokenizer(512).save(str(folder / "tokenizer.json"))
    save_file(hf_tensors(), folder / "model.safetensors")
    return folder


def test_a_hugging_face_folder_is_served(hf_folder: Path, cache_dir: Path) -> None:
    loaded = load_model(str(hf_folder), cache_dir=cache_dir)
    assert loaded.source.name == "small-qwen3"
    assert loaded.config.eos_token_ids == (256, 258)
    bench = EngineBench(loaded, num_slots=2)
    assert len(bench.greedy(random_tokens(300, seed=1), [1, 0], max_tokens=3)) <= 3


def test_a_missing_tensor_is_named(hf_folder: Path, cache_dir: Path) -> None:
    tensors = hf_tensors()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, hf_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(str(hf_folder), cache_dir=cache_dir)
    assert not list((cache_dir / "weights").glob("*.safetensors"))


def test_a_weight_that_would_be_left_out_is_refused(hf_folder: Path, cache_dir: Path) -> None:
    extra = {"model.layers.0.self_attn.o_proj.bias": torch.zeros(64)}
    save_file(hf_tensors() | extra, hf_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"o_proj\.bias .* not supported"):
        load_model(str(hf_folder), cache_dir=cache_dir)


def test_a_tensor_of_another_shape_is_named(hf_folder: Path, cache_dir: Path) -> None:
    wrong = {"model.layers.0.self_attn.v_proj.weight": torch.zeros(32, 64)}
    save_file(hf_tensors() | wrong, hf_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.v_proj\.weight \[32, 64\]"):
        load_model(str(hf_folder), cache_dir=cache_dir)


def test_an_unknown_architecture_is_named(hf_folder: Path, cache_dir: Path) -> None:
    config = HF_CONFIG | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (hf_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"model_type.*mamba"):
        load_model(str(hf_folder), cache_dir=cache_dir)


def test_a_tensor_of_other_columns_is_named(hf_folder: Path, cache_dir: Path) -> None:
    wrong = {"model.layers.0.mlp.up_proj.weight": torch.zeros(96, 32)}
    save_file(hf_tensors() | wrong, hf_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj\.weight \[96, 32\]"):
        load_model(str(hf_folder), cache_dir=cache_dir)


def test_a_cut_off_weights_file_is_one_clear_error(hf_folder: Path, cache_dir: Path) -> None:
    whole = (hf_folder / "model.safetensors").read_bytes()
    (hf_folder / "model.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        load_model(str(hf_folder), cache_dir=cache_dir)


_PRINT_ROOT = """
import sys
from pathlib import Path
from shared.engine.loaded_model import load_model
print(load_model("dummy:small", cache_dir=Path(sys.argv[1])).kv_format.root().hex())
"""


def test_processes_that_load_at_once_share_one_file(cache_dir: Path) -> None:
    command = [sys.executable, "-c", _PRINT_ROOT, str(cache_dir)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    roots = [process.communicate(timeout=50)[0] for process in processes]
    assert len(roots[0].strip()) == 32
    assert roots[0] == roots[1]
    assert len(list((cache_dir / "weights").glob("*.safetensors"))) == 1
    assert not list((cache_dir / "weights").glob("*.unfinished"))


def test_what_changes_bits_changes_the_root(tiny: LoadedModel, engine_cache: Path) -> None:
    roots = {
        load_model("dummy:tiny", cache_dir=engine_cache, **options).kv_format.root()  # type: ignore[arg-type]
        for options in (
            {},
            {"dtype": "bfloat16"},
            {"dtype": "bfloat16", "linear_mode": "plain"},
            {"dtype": "bfloat16", "linear_mode": "plain", "threads": 2},
            {"mode": "fast"},
            {"block_tokens": 128},
        )
    }
    assert len(roots) == 6
    assert tiny.kv_format.root() in roots


def test_threads_do_not_change_the_root_in_float32(tiny: LoadedModel, engine_cache: Path) -> None:
    if tiny.kv_format.linear_mode == "plain":
        pytest.skip("neither our kernels nor prepacked linears are here")
    two = load_model("dummy:tiny", cache_dir=engine_cache, threads=2)
    assert two.kv_format == tiny.kv_format


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"threads": 0}, "threads"),
        ({"block_tokens": 48}, "block"),
    ],
)
def test_bad_options_are_refused_by_name(
    options: dict[str, object], field: str, cache_dir: Path
) -> None:
    with pytest.raises(EngineError, match=f"^{field}"):
        load_model("dummy:tiny", cache_dir=cache_dir, **options)  # type: ignore[arg-type]


def test_the_pool_view_shares_the_memory_and_has_the_stated_layout() -> None:
    layout = KvLayout(num_layers=3, block_tokens=4, num_kv_heads=2, head_dim=8, dtype="float32")
    assert layout.layer_bytes == 2 * 4 * 2 * 8 * 4
    assert layout.block_bytes == 3 * layout.layer_bytes
    memory = bytearray(5 * layout.block_bytes)
    pool = view_pool(memoryview(memory), layout, num_slots=5)
    pool[2, 1].fill_(1.0)
    start = 2 * layout.block_bytes + layout.layer_bytes
    assert any(memory[start : start + layout.layer_bytes])
    assert not any(memory[:start])
    assert not any(memory[start + layout.layer_bytes :])


def test_a_pool_too_small_or_read_only_is_refused() -> None:
    layout = KvLayout(num_layers=1, block_tokens=4, num_kv_heads=1, head_dim=8, dtype="bfloat16")
    with pytest.raises(EngineError, match="2 slots"):
        view_pool(memoryview(bytearray(layout.block_bytes)), layout, num_slots=2)
    with pytest.raises(EngineError, match="read-only"):
        view_pool(memoryview(bytes(layout.block_bytes)), layout, num_slots=1)
