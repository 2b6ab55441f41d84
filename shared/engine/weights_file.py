"""Files of named tensors in the safetensors format: written tensor by tensor, read by mapping.

A mapped file's pages are shared by all processes that map it, and cost nothing until touched.
"""

import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.checkpoint.errors import CheckpointError

_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class MappedWeights:
    """The tensors of one file. They are valid while this object lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                # Copy-on-write, since torch takes no read-only memory; nobody writes.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            header_bytes = struct.unpack_from("<Q", self._map, 0)[0]
            header = json.loads(self._map[8 : 8 + header_bytes])
        except (OSError, ValueError, struct.error) as error:
            raise CheckpointError(f"{path}: not a safetensors file ({error})") from error
        self._data_start = 8 + header_bytes
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self._entries: dict[str, Any] = header

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        return list(self._entries)

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the mapped file; never write to it."""
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self._path}: no tensor {name}")
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError(
                f"{self._path}: {name} has dtype {entry['dtype']}, only {', '.join(_DTYPES)} "
                "are supported"
            )
        begin, end = entry["data_offsets"]
        shape = torch.Size(entry["shape"])
        if self._data_start + end > len(self._map) or end - begin != shape.numel() * dtype.itemsize:
            raise CheckpointError(f"{self._path}: the file ends inside tensor {name}")
        flat = torch.frombuffer(
            self._map, dtype=dtype, count=shape.numel(), offset=self._data_start + begin
        )
        return flat.view(shape)

    def forget_pages(self) -> None:
        """Gives back the resident pages of this mapping; touching it again maps them anew."""
        self._map.madvise(mmap.MADV_DONTNEED)


def checked(
    specs: Iterable[TensorSpec], tensors: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors; raises at the first that is not what `specs` say."""
    for spec in specs:
        got_name, tensor = next(tensors)
        if got_name != spec.name or tensor.shape != spec.shape:
            raise CheckpointError(
                f"{spec.name}: expected shape {list(spec.shape)}, the checkpoint has {got_name} "
                f"with {list(tensor.shape)}"
            )
        yield got_name, tensor


def write_weights(
    path: Path, specs: Iterable[TensorSpec], tensors: Iterator[tuple[str, torch.Tensor]]
) -> None:
    """Writes the tensors in the order of `specs`, holding one of them at a time."""
    specs = list(specs)
    header: dict[str, Any] = {}
    offset = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": _DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.num_bytes],
        }
        offset += spec.num_bytes
    text = json.dumps(header).encode("ascii")
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in checked(specs, tensors):
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)
        # On disk before anyone renames it: a power cut must not leave a file with holes.
        file.flush()
        os.fsync(file.fileno())
