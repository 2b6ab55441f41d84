"""The panel that comes next is fetched, each line of it once: no bit would tell."""

import ctypes
from collections import Counter
from pathlib import Path

import pytest
import torch

from shared.engine import kernel_build
from shared.engine.cpu_isa import cpu_flags, may_use_tiles
from shared.engine.kernel_build import KernelIsa
from shared.native.build import built

PANEL, LINE_BYTES, ROOM = 64, 64, 1 << 16
FETCH_READER = """
#include <immintrin.h>
#define __builtin_prefetch(line, ...) note(line)
static void note(const void *line);
#include "kernels_linear.h"
EXPORT const void *fetched[1 << 16];
EXPORT long num_fetched;
static void note(const void *line) { fetched[num_fetched++ % (1 << 16)] = line; }
"""


@pytest.mark.parametrize(
    ("isa", "dtype", "rows"),
    [
        ("avx512", torch.float32, 192),
        ("avx512", torch.bfloat16, 96),
        ("amx", torch.bfloat16, 512),
    ],
)
def test_so_many_rows_fetch_the_whole_next_panel_once(
    isa: KernelIsa, dtype: torch.dtype, rows: int, tmp_path: Path
) -> None:
    flags = cpu_flags()
    is_bfloat16 = dtype == torch.bfloat16
    if isa not in kernel_build.fastest_isas(flags, is_bfloat16=is_bfloat16):
        pytest.skip(f"a CPU without {isa} for {dtype}")
    if isa == "amx" and not may_use_tiles():
        pytest.skip("the system keeps AMX from this process")
    source = tmp_path / "fetch_reader.c"
    source.write_text(FETCH_READER)
    command = ["gcc", *kernel_build._FLAGS, "-O1", *kernel_build._target(isa, flags)]
    headers = Path(kernel_build.__file__).parent
    library = built("reader", [*command, f"-I{headers}"], [source], tmp_path, instead="-")
    if library is None:
        pytest.skip(f"no gcc that knows {isa}")
    functions = ctypes.CDLL(str(library))
    for depth in (576, 1200):
        lines = lines_fetched_ahead(functions, dtype, rows, depth)
        # Tiles leave out what is left of the depth, less than 32 inputs.
        whole = depth // 32 * 32 if isa == "amx" else depth
        assert len(lines) == PANEL * whole * dtype.itemsize // LINE_BYTES
        assert set(lines) <= set(range(PANEL * depth * dtype.itemsize // LINE_BYTES))
        assert set(lines.values()) == {1}


def lines_fetched_ahead(
    functions: ctypes.CDLL, dtype: torch.dtype, rows: int, depth: int
) -> Counter[int]:
    """How often each line of the next panel, by `rows` times one panel."""
    linear = getattr(functions, "linear_bf16" if dtype == torch.bfloat16 else "linear_float")
    num_fetched = ctypes.c_long.in_dll(functions, "num_fetched")
    num_fetched.value = 0
    x, out = torch.zeros(rows, depth, dtype=dtype), torch.zeros(rows, PANEL, dtype=dtype)
    panel_bytes = PANEL * depth * dtype.itemsize
    room = torch.zeros(panel_bytes + LINE_BYTES, dtype=torch.uint8)
    panel = -(-room.data_ptr() // LINE_BYTES) * LINE_BYTES
    pointers = (x.data_ptr(), 0, panel, 0, 0, out.data_ptr())
    linear(
        *map(ctypes.c_void_p, pointers), *map(ctypes.c_long, (rows, PANEL, depth)), ctypes.c_int(1)
    )
    assert num_fetched.value <= ROOM
    fetched = (ctypes.c_size_t * ROOM).in_dll(functions, "fetched")[: num_fetched.value]
    following = panel + panel_bytes
    return Counter((at - following) // LINE_BYTES for at in fetched if at >= following)
