"""The machine's limits, for the shapes of the model: what no engine can exceed."""

import time
from collections.abc import Sequence

import torch

from shared.engine.linear import Linear, best_linear_mode

ROWS = 2048
BANDWIDTH_BYTES = 1 << 30
REPEATS = 4


@torch.inference_mode()
def gemm_flops_per_s(shapes: Sequence[tuple[int, int]], dtype: torch.dtype, rows: int) -> float:
    """The best rate of all the shapes, plain or prepacked.

    Never below float32's: where a CPU multiplies no bfloat16, torch's products of it are slower.
    """
    if dtype is not torch.float32:
        return max(_best_flops_per_s(shapes, each, rows) for each in (dtype, torch.float32))
    return _best_flops_per_s(shapes, dtype, rows)


def _best_flops_per_s(shapes: Sequence[tuple[int, int]], dtype: torch.dtype, rows: int) -> float:
    best = 0.0
    for inputs, outputs in shapes:
        weight = torch.randn(outputs, inputs).to(dtype)
        values = torch.randn(rows, inputs).to(dtype)
        for mode in ("plain", best_linear_mode(dtype)):
            linear = Linear(weight, None, mode)
            linear(values)
            for _ in range(REPEATS):
                start_s = time.perf_counter()
                linear(values)
                seconds = time.perf_counter() - start_s
                best = max(best, 2.0 * rows * inputs * outputs / seconds)
    return best


@torch.inference_mode()
def read_bytes_per_s() -> float:
    """Reading memory that no cache holds, with all threads."""
    values = torch.ones(BANDWIDTH_BYTES // 8, dtype=torch.int64)
    return BANDWIDTH_BYTES / _least_s(values.sum)


@torch.inference_mode()
def copy_bytes_per_s() -> float:
    """Copying it, reads and writes counted."""
    source = torch.ones(BANDWIDTH_BYTES // 8, dtype=torch.int64)
    target = torch.zeros_like(source)
    return 2 * BANDWIDTH_BYTES / _least_s(lambda: target.copy_(source))


def _least_s(work: object) -> float:
    assert callable(work)
    work()
    seconds = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start_s)
    return min(seconds)
