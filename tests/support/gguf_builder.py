"""Writes small GGUF files, whole or broken, for tests of their readers."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.checkpoint.byte_level import BYTE_TO_CHAR

MetadataValue = str | int | float | bool | list[str] | list[int]
_F32 = 0
_ALIGNMENT_BYTES = 32


def byte_level_metadata() -> dict[str, MetadataValue]:
    """A Llama-shaped model whose vocabulary is the 256 bytes, two specials and one merge."""
    tokens = [BYTE_TO_CHAR[byte] for byte in range(256)] + ["<|im_start|>", "<|im_end|>", "he"]
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 512,
        "llama.embedding_length": 16,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
    }


def llama_tensors(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    shapes = {
        "token_embd.weight": (259, 16),
        "output_norm.weight": (16,),
        "blk.0.attn_norm.weight": (16,),
        "blk.0.ffn_norm.weight": (16,),
        "blk.0.attn_q.weight": (16, 16),
        "blk.0.attn_k.weight": (8, 16),
        "blk.0.attn_v.weight": (8, 16),
        "blk.0.attn_output.weight": (16, 16),
        "blk.0.ffn_gate.weight": (32, 16),
        "blk.0.ffn_up.weight": (32, 16),
        "blk.0.ffn_down.weight": (16, 32),
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, npt.NDArray[np.float32]],
    ggml_type: int = _F32,
    stored: Mapping[str, tuple[int, bytes]] | None = None,
) -> Path:
    """`stored`: type and raw bytes of tensors that are not as their array says."""
    kept = {name: (ggml_type, tensor.tobytes()) for name, tensor in tensors.items()}
    kept |= stored or {}
    out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    offset = 0
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        out += _string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", kept[name][0], offset)
        offset += _padded(len(kept[name][1]))
    out += bytes(_padded(len(out)) - len(out))
    for name in tensors:
        raw = kept[name][1]
        out += raw + bytes(_padded(len(raw)) - len(raw))
    path.write_bytes(out)
    return path


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: MetadataValue) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case list():
            if value and isinstance(value[0], str):
                head = struct.pack("<IIQ", 9, 8, len(value))
                return head + b"".join(_string(str(item)) for item in value)
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
