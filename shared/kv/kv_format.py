"""All that the bits of a KV block depend on, as one record. Its hash is the root of every chain."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal, Self

ROOT_BYTES = 16


@dataclass(frozen=True, slots=True)
class KvFormat:
    weights: str  # fingerprint of the checkpoint
    architecture: str
    tokenizer: str  # fingerprint: equal text must mean equal tokens
    mode: Literal["exact", "fast"]
    dtype: Literal["float32", "bfloat16"]
    linear_mode: str  # which kernels multiply: a LinearMode of the engine
    grid_tokens: int
    block_tokens: int
    layout_version: int
    engine_revision: int  # raised when the engine's arithmetic changes
    torch_version: str
    device: str  # what of it decides which kernels run
    threads: int | None = None  # only where the thread count changes bits

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Raises ValueError that names the fields that are missing or unknown."""
        names = {field.name for field in fields(cls)}
        missing = sorted(names - values.keys() - {"threads"})
        unknown = sorted(values.keys() - names)
        if missing or unknown:
            raise ValueError(f"kv_format: missing {missing}, unknown {unknown}")
        return cls(**values)

    def root(self, salt: str = "") -> bytes:
        """The parent of every first block: equal on every process, host and run."""
        return _root(self, salt)

    def differences(self, other: "KvFormat") -> list[str]:
        """`field: mine != theirs` for each field that differs."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [
            f"{name}: {mine[name]!r} != {theirs[name]!r}"
            for name in mine
            if mine[name] != theirs[name]
        ]


@lru_cache(maxsize=64)
def _root(kv_format: KvFormat, salt: str) -> bytes:
    """Kept: each run of a prompt asks for it."""
    canonical = json.dumps(
        {"kv_format": kv_format.to_dict(), "salt": salt},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
    )
    return hashlib.blake2b(canonical.encode("ascii"), digest_size=ROOT_BYTES).digest()
