"""Matrix multiplication whose bits do not depend on the number of rows, where the machine can.

Our kernels promise it for every count of rows and of threads. Of torch's, oneDNN's prepacked ones
keep it in float32 from two rows on; the plain ones do not promise it.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F

from shared.engine.kernel_build import KernelIsa
from shared.engine.kernels import Kernels

LinearMode = Literal[
    "amx-panels", "avx512-panels", "avx2-panels", "onednn-prepacked", "plain", "cublas"
]
PANEL_MODES: dict[LinearMode, KernelIsa] = {
    "amx-panels": "amx",
    "avx512-panels": "avx512",
    "avx2-panels": "avx2",
}


def panel_mode(isa: KernelIsa) -> LinearMode:
    return next(mode for mode, made_for in PANEL_MODES.items() if made_for == isa)


_PREPACKED_OPERATORS = ("_reorder_linear_weight", "_linear_pointwise")


def best_linear_mode(dtype: torch.dtype) -> LinearMode:
    """Of torch's on a CPU. Private operators, so their absence is expected in another torch."""
    operators = torch.ops.mkldnn
    if not torch.backends.mkldnn.enabled:
        return "plain"
    if not all(hasattr(operators, name) for name in _PREPACKED_OPERATORS):
        return "plain"
    if dtype == torch.bfloat16 and not _has_onednn_bfloat16():
        return "plain"
    return "onednn-prepacked"


def _has_onednn_bfloat16() -> bool:
    """oneDNN takes bfloat16 from AVX-512 on."""
    is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return is_supported is not None and bool(is_supported())


class AnyLinear(Protocol):
    def __call__(
        self, rows: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor: ...


class PanelLinear:
    """y = x W^T + b (+ residual) by our kernels, over the shared memory of the panels."""

    __slots__ = ("_bias", "_kernels", "_num_outputs", "_panels")

    def __init__(
        self, kernels: Kernels, panels: torch.Tensor, num_outputs: int, bias: torch.Tensor | None
    ) -> None:
        self._kernels = kernels
        self._panels = panels
        self._num_outputs = num_outputs
        self._bias = bias

    def __call__(self, rows: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return self._kernels.linear(rows, self._panels, self._num_outputs, self._bias, residual)

    def silu_up(self, rows: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, where the outputs are gate and then up, without a bias."""
        return self._kernels.linear_silu_up(rows, self._panels, self._num_outputs)


class Linear:
    """y = x W^T + b (+ residual) by torch. Holds a private prepacked copy, or the plain weight."""

    __slots__ = ("_bias", "_is_prepacked", "_weight")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, linear_mode: LinearMode
    ) -> None:
        self._bias = bias
        self._is_prepacked = linear_mode == "onednn-prepacked"
        self._weight: Any = (
            torch.ops.mkldnn._reorder_linear_weight(weight, None) if self._is_prepacked else weight
        )

    def __call__(self, rows: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        result = self._product(rows)
        return result if residual is None else residual + result

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        if not self._is_prepacked:
            return F.linear(rows, self._weight, self._bias)
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], None
        )
        return result


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """How many rows a decode step computes at once, so that company changes no bits."""

    minimum: int  # fewer are padded to this
    group: int | None  # more are split into groups of this; None: as many as there are


def is_row_independent(linear_mode: LinearMode, dtype: torch.dtype) -> bool:
    """Whether a row has the same bits among any two or more rows and on any number of threads."""
    if linear_mode in PANEL_MODES:
        return True
    return linear_mode == "onednn-prepacked" and dtype == torch.float32


def decode_rows(
    linear_mode: LinearMode, dtype: torch.dtype, *, is_exact: bool = True
) -> DecodeRows:
    if linear_mode in PANEL_MODES or not is_exact:
        return DecodeRows(minimum=1, group=None)
    if is_row_independent(linear_mode, dtype):
        return DecodeRows(minimum=2, group=None)
    # The kernel is chosen by the number of rows, so there is only one number. In bfloat16 the
    # first 32 rows cost little more than one, as on a GPU.
    fixed = 32 if dtype == torch.bfloat16 or linear_mode == "cublas" else 8
    return DecodeRows(minimum=fixed, group=fixed)
