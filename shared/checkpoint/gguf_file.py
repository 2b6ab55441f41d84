"""Reads what a GGUF file says of itself: metadata and where each tensor lies. Never its weights."""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.checkpoint.errors import CheckpointError

_MAGIC = b"GGUF"
_SUPPORTED_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT_BYTES = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # outermost dimension first, as numpy has it
    ggml_type: int
    offset_bytes: int  # from the start of the file


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def required(self, key: str) -> Any:
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: GGUF metadata has no {key}")
        return self.metadata[key]


def read_gguf(path: Path) -> GgufFile:
    """Raises CheckpointError where the file is not a complete GGUF header."""
    try:
        with path.open("rb") as file, _map(file.fileno()) as data:
            return _parse(path, data)
    except (OSError, ValueError, struct.error) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not a readable GGUF file ({error})") from error


def _map(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    if data[:4] != _MAGIC:
        raise CheckpointError(f"{path}: not a GGUF file (it starts with {data[:4]!r})")
    cursor = _Cursor(data, 4)
    version = cursor.scalar("I")
    if version not in _SUPPORTED_VERSIONS:
        raise CheckpointError(
            f"{path}: GGUF version {version} is not supported, only {_SUPPORTED_VERSIONS}"
        )
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    headers = [_tensor_header(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES))
    data_start = -(-cursor.offset // alignment) * alignment
    tensors = {
        name: GgufTensor(name, shape, ggml_type, data_start + offset)
        for name, shape, ggml_type, offset in headers
    }
    return GgufFile(path, metadata, tensors)


def _tensor_header(cursor: "_Cursor") -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    num_dims = cursor.scalar("I")
    dims = [cursor.scalar("Q") for _ in range(num_dims)]
    return name, tuple(reversed(dims)), cursor.scalar("I"), cursor.scalar("Q")


class _Cursor:
    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self.data = data
        self.offset = offset

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.data, self.offset)[0]
        self.offset += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length: int = struct.unpack_from("<Q", self.data, self.offset)[0]
        start = self.offset + 8
        raw = self.data[start : start + length]
        if len(raw) < length:
            raise ValueError("it ends inside its metadata")
        self.offset = start + length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"metadata value of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            code = f"<{count}{_SCALARS[kind]}"
            values = list(struct.unpack_from(code, self.data, self.offset))
            self.offset += struct.calcsize(code)
            return values
        read: Callable[[], Any] = self.string if kind == _STRING else lambda: self.value(kind)
        return [read() for _ in range(count)]
