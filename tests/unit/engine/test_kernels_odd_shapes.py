"""Our kernels on shapes that no tile, register or block divides, and on what is not a number."""

import ctypes
import itertools
import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shared.engine import kernel_build
from shared.engine.cpu_isa import cpu_flags, may_use_tiles
from shared.engine.kernel_build import KernelIsa
from shared.engine.kernels import Kernels, load_kernels, packed_shape
from shared.engine.loaded_model import LoadedModel
from shared.engine.panels import to_panels
from shared.native.build import built

NAN, INF = float("nan"), float("inf")
TOLERANCES = {torch.float32: 5e-5, torch.bfloat16: 2e-2}
NUM_SHAPES = 6

CONFIG_READER = """
#include "kernels_product.h"
__attribute__((noinline)) static void configure(long rows) { configure_tiles(rows); }
EXPORT void read_config(long rows, uint8_t *found) {
    configure(rows);
    __asm__ volatile("sttilecfg (%0)" ::"r"(found) : "memory");
    release_tiles();
}
"""


@pytest.fixture(autouse=True)
def _any_work_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.engine.kernels._WORTH_A_THREAD", 0)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    value: torch.dtype = request.param
    return value


@pytest.fixture(params=get_args(KernelIsa))
def kernels(
    request: pytest.FixtureRequest, dtype: torch.dtype, tiny: LoadedModel, engine_cache: Path
) -> Kernels:
    found = load_kernels(tiny.config, dtype, engine_cache, request.param)
    if found is None:
        pytest.skip(f"no gcc, or a CPU without {request.param} for {dtype}")
    torch.manual_seed(3)
    return found


def attended(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> torch.Tensor:
    own = torch.arange(len(keys))
    age = own[:, None] - own
    visible = (age >= 0) & (age < (window or len(keys)))
    q, k, v = (rows.float().transpose(0, 1)[None] for rows in (query, keys, values))
    result = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    return result[0].transpose(0, 1).flatten(1)


def run_of(kernels: Kernels, *rows: torch.Tensor) -> torch.Tensor:
    """Queries over keys and values of one head, from position 0."""
    query, keys, values = rows
    packed = torch.zeros(packed_shape((1,), len(keys), keys.shape[2]), dtype=keys.dtype)
    kernels.pack(keys, values, packed, 0)
    return kernels.attend_run(query, packed, 0, None)


def test_a_product_is_torchs_and_its_rows_have_their_bits_in_any_company(
    kernels: Kernels, dtype: torch.dtype
) -> None:
    shapes, tolerance = random.Random(1), TOLERANCES[dtype]
    for _ in range(NUM_SHAPES):
        rows, depth = shapes.randint(1, 140), 2 * shapes.randint(1, 200)
        outputs = shapes.randint(1, 200)
        x, residual = torch.randn(rows, depth).to(dtype), torch.randn(rows, outputs).to(dtype)
        weight = (torch.randn(outputs, depth) / depth**0.5).to(dtype)
        panels, shape = to_panels(weight), (rows, depth, outputs)
        torch.set_num_threads(shapes.choice((1, 2)))
        whole = kernels.linear(x, panels, outputs, None, residual)
        expected = F.linear(x.float(), weight.float()) + residual.float()
        assert torch.allclose(whole.float(), expected, rtol=tolerance, atol=tolerance), shape
        first = shapes.randrange(rows)
        end = shapes.randint(first + 1, rows)
        torch.set_num_threads(shapes.choice((1, 2)))
        some = kernels.linear(x[first:end], panels, outputs, None, residual[first:end])
        assert torch.equal(some, whole[first:end]), (*shape, first, end)


def test_attention_is_torchs_and_its_rows_have_their_bits_wherever_they_are_cut(
    kernels: Kernels, dtype: torch.dtype
) -> None:
    shapes, tolerance = random.Random(2), TOLERANCES[dtype]
    for _ in range(NUM_SHAPES):
        dim, kv_heads = 16 * shapes.randint(1, 16), shapes.randint(1, 2)
        heads, count = kv_heads * shapes.choice((1, 2, 3, 17)), shapes.randint(1, 200)
        window = shapes.choice((None, 1, 2, 33, 63, 64, 65, 100))
        shape = (dim, kv_heads, heads, count, window)
        query = torch.randn(count, heads, dim).to(dtype)
        keys, values = torch.randn(2, count, kv_heads, dim).to(dtype)
        # What nobody has written may hold anything.
        packed = torch.full(packed_shape((kv_heads,), count, dim), NAN, dtype=dtype)
        cuts, parts = sorted({0, count, *(shapes.randrange(count) for _ in range(2))}), []
        for first, end in itertools.pairwise(cuts):
            torch.set_num_threads(shapes.choice((1, 2)))
            kernels.pack(keys[first:end], values[first:end], packed, first)
            parts.append(kernels.attend_run(query[first:end], packed, first, window))
        found = torch.cat(parts)
        expected = attended(query, keys, values, window)
        assert torch.allclose(found.float(), expected, rtol=tolerance, atol=tolerance), shape
        assert torch.equal(kernels.attend_run(query, packed, 0, window), found), (shape, cuts)
        at = shapes.randrange(count)
        cache = torch.full(packed_shape((kv_heads,), at + 1, dim), NAN, dtype=dtype)
        if at:
            kernels.pack(keys[:at], values[:at], cache, 0)
        addresses, strides, positions = (
            np.array([number], dtype=np.int64) for number in (cache.data_ptr(), cache.stride(0), at)
        )
        own_query, own_key, own_value = (rows[at : at + 1] for rows in (query, keys, values))
        decoded = kernels.attend_each(
            own_query, own_key, own_value, addresses, strides, positions, window
        )
        assert torch.equal(decoded[0], found[at]), (shape, at)


def test_what_is_not_a_number_stays_none_and_changes_no_row_that_does_not_see_it(
    kernels: Kernels, dtype: torch.dtype
) -> None:
    query, keys, values = torch.randn(3, 100, 1, 32).to(dtype)
    good = run_of(kernels, query, keys, values)
    bad_keys, bad_query = keys.clone(), query.clone()
    bad_keys[40, 0, 3] = bad_query[50, 0, 1] = NAN
    found = run_of(kernels, query, bad_keys, values)
    assert torch.equal(found[:40], good[:40])
    assert found[40:].isnan().all()
    found = run_of(kernels, bad_query, keys, values)
    assert found[50].isnan().all()
    assert not found[:50].isnan().any()
    assert not found[51:].isnan().any()


def test_a_key_infinitely_far_off_weighs_nothing(kernels: Kernels, dtype: torch.dtype) -> None:
    query, keys, values = torch.randn(3, 100, 1, 32).to(dtype)
    query, far = query.abs(), keys.clone()
    far[40] = -INF
    found = run_of(kernels, query, far, values)
    assert torch.equal(found[:40], run_of(kernels, query, keys, values)[:40])
    some = torch.arange(100) != 40
    expected = run_of(kernels, query[some], keys[some], values[some])
    tolerance = TOLERANCES[dtype]
    assert torch.allclose(found[some].float(), expected.float(), rtol=tolerance, atol=tolerance)


def test_silu_of_the_largest_numbers(kernels: Kernels, dtype: torch.dtype) -> None:
    gate = torch.tensor([[INF, 3e38, 200.0, 88.0, 0.0, -88.0, -200.0, NAN]]).to(dtype)
    found = kernels.silu_up(torch.cat((gate, torch.ones_like(gate)), dim=1))
    assert torch.allclose(found, F.silu(gate), rtol=1e-2, atol=1e-30, equal_nan=True)


def test_products_of_torch_and_ours_may_take_turns(tiny: LoadedModel, engine_cache: Path) -> None:
    """Torch's library sets up the same tiles of the same threads."""
    ours = load_kernels(tiny.config, torch.bfloat16, engine_cache)
    if ours is None:
        pytest.skip("no gcc, or a CPU without AVX2")
    x, weight = torch.randn(70, 330).bfloat16(), torch.randn(100, 330).bfloat16() / 16
    panels = to_panels(weight)
    expected = ours.linear(x, panels, 100)
    for count in (1, 15, 16, 33, 70):
        torch.set_num_threads(1 + count % 2)
        theirs = F.linear(x[:count], weight)
        assert torch.equal(ours.linear(x[:count], panels, 100), expected[:count])
        assert torch.allclose(theirs.float(), expected[:count].float(), rtol=2e-2, atol=2e-2)


def test_the_processor_is_told_the_shape_of_every_tile(tmp_path: Path) -> None:
    """gcc's own word for it keeps 8 of 64 bytes in some versions."""
    if not cpu_flags().issuperset(kernel_build._NEEDED["amx"]) or not may_use_tiles():
        pytest.skip("a CPU without AMX")
    source = tmp_path / "config_reader.c"
    source.write_text(CONFIG_READER)
    command = ["gcc", *kernel_build._FLAGS, *kernel_build._target("amx", frozenset())]
    headers = Path(kernel_build.__file__).parent
    library = built("reader", [*command, f"-I{headers}"], [source], tmp_path, instead="-")
    if library is None:
        pytest.skip("no gcc that knows AMX")
    found = (ctypes.c_uint8 * 64)()
    for rows in (1, 7, 16):
        ctypes.CDLL(str(library)).read_config(ctypes.c_long(rows), found)
        assert bytes(found[:16]) == bytes([1, *[0] * 15])
        assert bytes(found[16:48]) == 8 * b"\x40\x00" + bytes(16)
        assert bytes(found[48:]) == bytes([*[rows] * 5, 16, 16, 16, *[0] * 8])
