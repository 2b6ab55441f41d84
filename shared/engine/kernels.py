"""The kernels of kernels.c on tensors. Each row's bits depend on that row alone: not on the number
of rows, on where a chunk begins, or on the number of threads."""

import ctypes
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shared.checkpoint.model_config import ModelConfig
from shared.engine.kernel_build import KernelIsa, build_kernels
from shared.engine.panels import PANEL

TILE_TOKENS = 64
_MAX_HEAD_DIM = 256
_MAX_GROUP = 48
_NO_WINDOW = 1 << 40
_WORTH_A_THREAD = 1 << 22
"""Multiplications, a quarter of a millisecond on one core: for less a second thread takes longer to
wake than it helps, and is waited for where others want its core."""
_FEW_ROWS = 16
"""A product of fewer waits for its weights, whatever there is to multiply."""
_PER_VALUE = 32
"""Multiplications that a value costs where each is looked at once."""

_P, _L, _F, _I = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
_SIGNATURES: dict[str, list[Any]] = {
    "linear": [_P] * 6 + [_L] * 3 + [_I],
    "pack": [_P, _P, _L, _P] + [_L] * 5 + [_I],
    "attend_run": [_P, _L, _P, _L, _P] + [_L] * 6 + [_F, _I],
    "attend_each": [_P, _P, _P, _L, _L, _P, _P, _P, _P] + [_L] * 5 + [_F, _I],
    "linear_silu_up": [_P] * 4 + [_L] * 3 + [_I],
    "silu_up": [_P, _P, _L, _L, _I],
    "rotate": [_P, _P, _P] + [_L] * 4 + [_I],
    "rms_norm": [_P, _P, _P, _L, _L, _F, _I],
}
_SUFFIXES = {torch.float32: "float", torch.bfloat16: "bf16"}

log = logging.getLogger("moonpool.engine")


def load_kernels(
    config: ModelConfig, dtype: torch.dtype, cache_dir: Path, isa: KernelIsa | None = None
) -> "Kernels | None":
    """For `isa` or the best; None where CPU, compiler or the shape of the model rule them out."""
    group = config.num_heads // config.num_kv_heads
    fits = (
        config.head_dim % 16 == 0
        and config.head_dim <= _MAX_HEAD_DIM
        and group <= _MAX_GROUP
        and config.hidden_size % 2 == 0
        and config.intermediate_size % 2 == 0
    )
    if not fits:
        return None
    found = build_kernels(cache_dir, is_bfloat16=dtype == torch.bfloat16, isa=isa)
    if found is None:
        return None
    library, isa = found
    try:
        functions = ctypes.CDLL(str(library))
    except OSError as error:
        log.warning(
            "kernels: cannot be loaded (%s); torch's own are used, which are slower (remove that "
            "file; the file system of MOONPOOL_CACHE_DIR must allow execution)",
            error,
        )
        return None
    if not hasattr(functions, f"linear_{_SUFFIXES[dtype]}"):
        return None
    return Kernels(functions, dtype, library.name, isa)


class Kernels:
    """For contiguous rows of one dtype, on as many threads as torch has."""

    def __init__(
        self, library: ctypes.CDLL, dtype: torch.dtype, build: str, isa: KernelIsa
    ) -> None:
        self.isa = isa
        self.build = build  # names source, compiler and flags
        # In float32 AVX2 and AVX-512 sum in the same order; else each instruction in its own.
        self.bits = "panels" if dtype == torch.float32 and isa != "amx" else f"{isa}-panels"
        """Equal names, equal bits of each result."""
        self._widens_rows = isa == "avx2" and dtype == torch.bfloat16
        self._calls: dict[str, Any] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"{name}_{_SUFFIXES[dtype]}")
            function.argtypes, function.restype = arguments, None
            self._calls[name] = function

    def linear(
        self,
        rows: torch.Tensor,
        panels: torch.Tensor,
        num_outputs: int,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        count, depth = rows.shape
        out, room = rows.new_empty(count, num_outputs), self._room_for(rows)
        self._calls["linear"](
            rows.data_ptr(), _address(room), panels.data_ptr(), _address(bias),
            _address(residual), out.data_ptr(), count, num_outputs, depth,
            _threads_of_product(count, depth, num_outputs),
        )  # fmt: skip
        return out

    def linear_silu_up(
        self, rows: torch.Tensor, panels: torch.Tensor, num_outputs: int
    ) -> torch.Tensor:
        """silu_up of a linear without bias whose panels hold gate and then up; outputs are halved.

        The bits are those of both after one another; the rows between them are never written.
        """
        count, depth = rows.shape
        columns = num_outputs // 2
        if columns % PANEL:
            return self.silu_up(self.linear(rows, panels, num_outputs))
        out, room = rows.new_empty(count, columns), self._room_for(rows)
        self._calls["linear_silu_up"](
            rows.data_ptr(), _address(room), panels.data_ptr(), out.data_ptr(), count, columns,
            depth, _threads_of_product(count, depth, num_outputs),
        )  # fmt: skip
        return out

    def _room_for(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Where rows are widened; None when they are multiplied as they are."""
        return torch.empty_like(rows, dtype=torch.float32) if self._widens_rows else None

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        rows = rows.contiguous()
        out, columns = torch.empty_like(rows), rows.shape[-1]
        self._calls["rms_norm"](
            rows.data_ptr(), weight.data_ptr(), out.data_ptr(), rows.numel() // columns, columns,
            eps, _threads(_PER_VALUE * rows.numel()),
        )  # fmt: skip
        return out

    def rotate(
        self, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """RoPE of the first `num_heads` of rows [rows, heads, dim], in place."""
        count, all_heads, dim = rows.shape
        self._calls["rotate"](
            rows.data_ptr(), cos.data_ptr(), sin.data_ptr(), count, num_heads, all_heads, dim,
            _threads(_PER_VALUE * count * num_heads * dim),
        )  # fmt: skip

    def silu_up(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, from rows of [gate, up]."""
        count, columns = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(count, columns)
        threads = _threads(_PER_VALUE * out.numel())
        self._calls["silu_up"](gate_up.data_ptr(), out.data_ptr(), count, columns, threads)
        return out

    def pack(
        self, keys: torch.Tensor, values: torch.Tensor, packed: torch.Tensor, first: int
    ) -> None:
        """K and V [tokens, kv_heads, dim] to positions `first`... of packed [kv_heads, ...]."""
        count, heads, dim = keys.shape
        if keys.stride() != values.stride() or keys.stride()[1:] != (dim, 1):
            raise ValueError("keys and values: the heads of a token do not lie together")
        self._calls["pack"](
            keys.data_ptr(), values.data_ptr(), keys.stride(0), packed.data_ptr(),
            packed.stride(0), first, count, heads, dim, _threads(_PER_VALUE * 2 * keys.numel()),
        )  # fmt: skip

    def attend_run(
        self, query: torch.Tensor, packed: torch.Tensor, position: int, window: int | None
    ) -> torch.Tensor:
        """Queries [rows, heads, dim] of consecutive positions -> [rows, heads * dim]."""
        rows, heads, dim = query.shape
        out = query.new_empty(rows, heads * dim)
        seen = min(position + rows, window or _NO_WINDOW)
        self._calls["attend_run"](
            query.data_ptr(), query.stride(0), packed.data_ptr(), packed.stride(0),
            out.data_ptr(), rows, position, window or _NO_WINDOW, heads, len(packed), dim,
            dim**-0.5, _threads(2 * heads * dim * rows * seen),
        )  # fmt: skip
        return out

    def attend_each(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        addresses: npt.NDArray[np.int64],
        head_strides: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        window: int | None,
    ) -> torch.Tensor:
        """One token of each sequence: K and V go to its packed cache, then it attends."""
        rows, heads, dim = query.shape
        out = query.new_empty(rows, heads * dim)
        self._calls["attend_each"](
            query.data_ptr(), key.data_ptr(), value.data_ptr(), query.stride(0), key.stride(0),
            addresses.ctypes.data, head_strides.ctypes.data, positions.ctypes.data,
            out.data_ptr(), rows, window or _NO_WINDOW, heads, key.shape[1], dim, dim**-0.5,
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def _threads(work: int) -> int:
    """For so many multiplications; bits are the same on any number."""
    return torch.get_num_threads() if work >= _WORTH_A_THREAD else 1


def _threads_of_product(rows: int, depth: int, num_outputs: int) -> int:
    return torch.get_num_threads() if rows < _FEW_ROWS else _threads(rows * depth * num_outputs)


def packed_shape(leading: Sequence[int], num_tokens: int, dim: int) -> tuple[int, ...]:
    """Shape [leading..., tiles, K and V, values] that holds `num_tokens`; give it zeros."""
    return (*leading, -(-num_tokens // TILE_TOKENS), 2, TILE_TOKENS * dim)


def unpacked(packed: torch.Tensor, num_tokens: int, dim: int) -> torch.Tensor:
    """[2, tokens, kv_heads, dim] of one layer's packed K and V, the inverse of `pack`."""
    heads = len(packed)
    tiles = packed[:, : -(-num_tokens // TILE_TOKENS)]
    pair = 2 if packed.dtype == torch.bfloat16 else 1  # neighbours that are interleaved
    runs = (heads, tiles.shape[1])
    keys = tiles[:, :, 0].reshape(*runs, dim // pair, TILE_TOKENS, pair).transpose(2, 3)
    values = tiles[:, :, 1].reshape(*runs, TILE_TOKENS // pair, dim, pair).transpose(3, 4)
    flat = [part.reshape(heads, -1, dim)[:, :num_tokens] for part in (keys, values)]
    return torch.stack(flat).transpose(1, 2)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
