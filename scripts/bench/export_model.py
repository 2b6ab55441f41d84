"""Writes a checkpoint in the forms that other engines read: `-m scripts.bench.export_model`.

A Hugging Face folder of any model, or a GGUF file with unquantised weights of a GGUF model.
"""

import argparse
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import read_gguf
from shared.checkpoint.gguf_tokenizer import build_gguf_tokenizer
from shared.checkpoint.locate import ModelSource, locate
from shared.checkpoint.model_config import ModelConfig, load_model_config, read_json
from shared.engine.kv_layout import TORCH_DTYPES, DtypeName
from shared.engine.model_weights import EMBEDDINGS, FINAL_NORM, LM_HEAD, model_specs
from shared.engine.weight_sources import read_weights
from shared.engine.weights_file import TensorSpec, write_weights

_TOP = {
    EMBEDDINGS: "model.embed_tokens.weight",
    FINAL_NORM: "model.norm.weight",
    LM_HEAD: "lm_head.weight",
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_GGUF_TYPES: dict[DtypeName, GGMLQuantizationType] = {
    "float32": GGMLQuantizationType.F32,
    "bfloat16": GGMLQuantizationType.BF16,
}
_LLAMA_FILE_TYPES: dict[DtypeName, int] = {"float32": 0, "bfloat16": 32}
_WRITTEN_BY_WRITER = ("general.architecture", "general.file_type")


def export_hf(source: ModelSource, dtype: DtypeName, folder: Path) -> None:
    """config.json, model.safetensors and, where the source has one, its tokenizer."""
    config = load_model_config(source)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _hf_config(source, config, dtype))
    _write_json(folder / "generation_config.json", {"eos_token_id": list(config.eos_token_ids)})
    _write_tokenizer(source, folder)
    torch_dtype = TORCH_DTYPES[dtype]
    shapes = (
        (spec.name, torch.empty(spec.shape, dtype=torch_dtype, device="meta"))
        for spec in model_specs(config, torch_dtype)
    )
    specs = [
        TensorSpec(name, tuple(tensor.shape), torch_dtype)
        for name, tensor in _hf_tensors(shapes, config)
    ]
    tensors = _hf_tensors(read_weights(source, config, torch_dtype), config)
    write_weights(folder / "model.safetensors", specs, tensors)


def _hf_config(source: ModelSource, config: ModelConfig, dtype: DtypeName) -> dict[str, Any]:
    if source.kind == "hf":
        return read_json(source.file_path / "config.json") | {"torch_dtype": dtype}
    if config.rope_scaling is not None:
        raise CheckpointError(f"{source.name}: scaled RoPE of a GGUF model cannot be exported")
    return {
        "architectures": [_ARCHITECTURES[config.architecture]],
        "model_type": config.architecture,
        "torch_dtype": dtype,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_eps,
        # Older and newer readers look in different places.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": config.eos_token_ids[0] if config.eos_token_ids else None,
    }


def export_gguf(source: ModelSource, dtype: DtypeName, path: Path) -> None:
    """The same metadata and tokenizer; matrices as `dtype`, vectors as float32."""
    if source.kind != "gguf":
        raise CheckpointError(f"{source.name}: only a GGUF model can be written as GGUF")
    reader = GGUFReader(source.file_path)
    architecture = str(reader.fields["general.architecture"].contents())
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, architecture)
    writer.add_file_type(_LLAMA_FILE_TYPES[dtype])
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in _WRITTEN_BY_WRITER:
            continue
        value_type = field.types[0]
        element = field.types[-1] if value_type == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), value_type, sub_type=element)
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        kind = _GGUF_TYPES["float32"] if values.ndim == 1 else _GGUF_TYPES[dtype]
        raw = values if kind == GGMLQuantizationType.F32 else quantize(values, kind)
        writer.add_tensor(tensor.name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _hf_tensors(
    tensors: Iterable[tuple[str, torch.Tensor]], config: ModelConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        if name in _TOP:
            yield _TOP[name], tensor
            continue
        _, layer, part = name.split(".")
        for tail, rows in _split_layer(part, tensor, config):
            yield f"model.layers.{layer}.{tail}", rows


def _split_layer(
    part: str, tensor: torch.Tensor, config: ModelConfig
) -> list[tuple[str, torch.Tensor]]:
    """What the engine keeps under each other, apart again."""
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    plain = {
        "input_norm": "input_layernorm.weight",
        "query_norm": "self_attn.q_norm.weight",
        "key_norm": "self_attn.k_norm.weight",
        "attention_out": "self_attn.o_proj.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "down": "mlp.down_proj.weight",
    }
    if part in plain:
        return [(plain[part], tensor)]
    if part == "gate_up":
        names = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
        return list(zip(names, tensor.chunk(2), strict=True))
    kind = "bias" if part == "qkv_bias" else "weight"
    names = [f"self_attn.{which}_proj.{kind}" for which in "qkv"]
    return list(zip(names, torch.split(tensor, [query, kv, kv]), strict=True))


def _write_tokenizer(source: ModelSource, folder: Path) -> None:
    if source.kind == "hf":
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (source.file_path / name).is_file():
                shutil.copyfile(source.file_path / name, folder / name)
    if source.kind == "gguf":
        file = read_gguf(source.file_path)
        build_gguf_tokenizer(file).save(str(folder / "tokenizer.json"))
        tokens = file.metadata["tokenizer.ggml.tokens"]
        described = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for name in ("bos", "eos"):
            token_id = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
            if token_id is not None:
                described[f"{name}_token"] = tokens[int(token_id)]
        if "tokenizer.chat_template" in file.metadata:
            described["chat_template"] = file.metadata["tokenizer.chat_template"]
        _write_json(folder / "tokenizer_config.json", described)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="as --model of `moonpool up`")
    parser.add_argument("target", type=Path, help="a folder (hf) or a file (gguf), made new")
    parser.add_argument("--format", choices=("hf", "gguf"), required=True)
    parser.add_argument("--dtype", choices=tuple(_GGUF_TYPES), default="float32")
    given = parser.parse_args()
    dtype = cast(DtypeName, given.dtype)
    # Renamed into place: whoever sees the name sees the whole.
    unfinished = given.target.with_name(f"{given.target.name}.{os.getpid()}")
    try:
        export = export_hf if given.format == "hf" else export_gguf
        export(locate(given.model), dtype, unfinished)
    except (CheckpointError, OSError) as error:
        parser.exit(1, f"export_model: {error}\n")
    unfinished.rename(given.target)


if __name__ == "__main__":
    main()
