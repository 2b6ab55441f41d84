"""Our kernels: what torch gives, and bits that depend on nothing but the row."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from shared.checkpoint.model_config import ModelConfig
from shared.engine import kernel_build
from shared.engine.decode import DecodeEngine
from shared.engine.kernel_check import agrees_with_torch
from shared.engine.kernels import Kernels, load_kernels, packed_shape
from shared.engine.loaded_model import LoadedModel
from shared.engine.panels import to_panels
from tests.support.engine import EngineBench, random_tokens

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def _any_work_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among threads, however small it is."""
    monkeypatch.setattr("shared.engine.kernels._WORTH_A_THREAD", 0)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    value: torch.dtype = request.param
    return value


@pytest.fixture(params=get_args(kernel_build.KernelIsa))
def isa(request: pytest.FixtureRequest) -> kernel_build.KernelIsa:
    value: kernel_build.KernelIsa = request.param
    return value


def built(
    config: ModelConfig,
    dtype: torch.dtype,
    cache_dir: Path,
    isa: kernel_build.KernelIsa | None = None,
) -> Kernels:
    kernels = load_kernels(config, dtype, cache_dir, isa)
    if kernels is None:
        pytest.skip(f"no gcc, or a CPU without {isa or 'AVX2'} for {dtype}")
    return kernels


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(9, 3, 64), (4, 4, 32), (8, 2, 128), (4, 1, 80), (2, 2, 256), (7, 1, 16)],
)
def test_they_agree_with_torch_for_every_shape_of_heads(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    isa: kernel_build.KernelIsa,
    tiny: LoadedModel,
    engine_cache: Path,
) -> None:
    config = replace(tiny.config, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert agrees_with_torch(built(config, dtype, engine_cache, isa), config, dtype)


def test_a_linear_row_does_not_depend_on_company_or_threads(
    dtype: torch.dtype, isa: kernel_build.KernelIsa, tiny: LoadedModel, engine_cache: Path
) -> None:
    kernels = built(tiny.config, dtype, engine_cache, isa)
    rows, panels = torch.randn(130, 1100).to(dtype), to_panels(torch.randn(200, 1100).to(dtype))
    whole = kernels.linear(rows, panels, 200)
    for count in range(1, 131):
        assert torch.equal(kernels.linear(rows[:count], panels, 200), whole[:count])
    torch.set_num_threads(2)
    for count in (1, 2, 7, 97, 130):
        assert torch.equal(kernels.linear(rows[:count], panels, 200), whole[:count])


def test_a_second_thread_is_woken_for_work_that_is_worth_it_only(
    tiny: LoadedModel, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    kernels = built(tiny.config, torch.float32, engine_cache)
    threads: list[int] = []

    def note(*arguments: object) -> None:
        assert isinstance(arguments[-1], int)
        threads.append(arguments[-1])

    for name in kernels._calls:
        monkeypatch.setitem(kernels._calls, name, note)
    torch.set_num_threads(2)
    packed = torch.zeros(packed_shape((2,), 256, 32))
    for rows in (20, 256):
        x, values = torch.zeros(rows, 512), torch.zeros(rows, 8, 32)
        kernels.linear(x, packed, 256)
        kernels.linear_silu_up(x, packed, 256)
        kernels.rms_norm(x, x, 1e-5)
        kernels.silu_up(torch.zeros(rows, 1024))
        kernels.rotate(torch.zeros(rows, 32, 32), x, x, 32)
        kernels.pack(values, values, packed, 0)
        kernels.attend_run(torch.zeros(rows, 16, 32), packed, 0, None)
        assert threads == [1 if rows == 20 else 2] * 7, rows
        threads.clear()
    kernels.linear(torch.zeros(1, 64), packed, 64)
    assert threads == [2], "it waits for weights: all threads read them"


@pytest.mark.parametrize("columns", [128, 40])
def test_gate_and_up_in_one_go_have_the_bits_of_one_after_the_other(
    columns: int,
    dtype: torch.dtype,
    isa: kernel_build.KernelIsa,
    tiny: LoadedModel,
    engine_cache: Path,
) -> None:
    kernels = built(tiny.config, dtype, engine_cache, isa)
    rows, weight = torch.randn(130, 700).to(dtype), torch.randn(2 * columns, 700).to(dtype)
    panels = to_panels(weight / 8)
    expected = kernels.silu_up(kernels.linear(rows, panels, 2 * columns))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for count in (1, 5, 24, 64, 97, 130):
            found = kernels.linear_silu_up(rows[:count], panels, 2 * columns)
            assert torch.equal(found, expected[:count])


def test_work_between_products_does_not_depend_on_threads(
    dtype: torch.dtype, isa: kernel_build.KernelIsa, tiny: LoadedModel, engine_cache: Path
) -> None:
    kernels = built(tiny.config, dtype, engine_cache, isa)
    rows, scale = torch.randn(150, 160).to(dtype), torch.randn(160).to(dtype)
    cos, sin = torch.randn(2, 150, 16).to(dtype)
    keys, values = torch.randn(2, 150, 2, 32).to(dtype)

    def results() -> list[torch.Tensor]:
        packed = torch.zeros(packed_shape((2,), 200, 32), dtype=dtype)
        kernels.pack(keys[:21], values[:21], packed, 0)
        kernels.pack(keys[21:], values[21:], packed, 21)
        rotated = rows.clone().view(150, 5, 32)
        kernels.rotate(rotated, cos, sin, 3)
        return [packed, rotated, kernels.rms_norm(rows, scale, 1e-5), kernels.silu_up(rows)]

    one = results()
    torch.set_num_threads(2)
    assert all(torch.equal(*pair) for pair in zip(one, results(), strict=True))


@pytest.mark.parametrize("window", [None, 50])
def test_an_attended_row_does_not_depend_on_how_the_run_is_cut(
    window: int | None,
    dtype: torch.dtype,
    isa: kernel_build.KernelIsa,
    tiny: LoadedModel,
    engine_cache: Path,
) -> None:
    kernels = built(tiny.config, dtype, engine_cache, isa)
    query = torch.randn(200, 4, 32).to(dtype)
    keys, values = torch.randn(2, 200, 2, 32).to(dtype)
    packed = torch.zeros(packed_shape((2,), 200, 32), dtype=dtype)
    kernels.pack(keys, values, packed, 0)
    whole = kernels.attend_run(query, packed, 0, window)
    for cut in (1, 17, 64, 199):
        packed.zero_()
        kernels.pack(keys[:cut], values[:cut], packed, 0)
        before = kernels.attend_run(query[:cut], packed, 0, window)
        kernels.pack(keys[cut:], values[cut:], packed, cut)
        after = kernels.attend_run(query[cut:], packed, cut, window)
        assert torch.equal(torch.cat((before, after)), whole)


@pytest.mark.parametrize("name", ["tiny", "tiny_bf16"])
def test_a_decoded_token_has_the_bits_of_a_prefilled_one(
    name: str, request: pytest.FixtureRequest
) -> None:
    loaded: LoadedModel = request.getfixturevalue(name)
    if loaded.model.kernels is None:
        pytest.skip("torch's kernels do not promise it")
    prompt = random_tokens(90, seed=2)
    bench = EngineBench(loaded, num_slots=1)
    bench.prefill(prompt[:60], [0])
    decode = DecodeEngine(loaded.model, loaded.layout, capacity_tokens=200)
    bench.join(decode, "a", [0], 60, room=40)
    for position in range(60, 90):
        logits = decode.step([("a", prompt[position], position)])[0]
        assert torch.equal(logits, bench.prefill(prompt[: position + 1], [0]))


@pytest.mark.parametrize("window", [None, 50])
def test_avx2_and_avx512_give_the_same_bits_in_float32(
    window: int | None, tiny: LoadedModel, engine_cache: Path
) -> None:
    found = (
        built(tiny.config, torch.float32, engine_cache, "avx2"),
        built(tiny.config, torch.float32, engine_cache, "avx512"),
    )
    results = []
    for kernels in found:
        torch.manual_seed(1)
        rows, scale = torch.randn(130, 1100), torch.randn(1100)
        panels, bias = to_panels(torch.randn(200, 1100)), torch.randn(200)
        query, (keys, values) = torch.randn(200, 4, 32), torch.randn(2, 200, 2, 32)
        packed = torch.zeros(packed_shape((2,), 200, 32))
        kernels.pack(keys, values, packed, 0)
        results.append(
            (
                packed,
                kernels.linear(rows, panels, 200, bias),
                kernels.silu_up(30 * rows),
                kernels.rms_norm(rows, scale, 1e-5),
                kernels.attend_run(query, packed, 0, window),
            )
        )
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_numbers_that_bfloat16_does_not_have_go_to_the_nearest(
    isa: kernel_build.KernelIsa, tiny: LoadedModel, engine_cache: Path
) -> None:
    kernels = load_kernels(tiny.config, torch.bfloat16, engine_cache, isa)
    if kernels is None:
        pytest.skip(f"no gcc, or a CPU without {isa} (for bfloat16: AVX512_BF16)")
    # Sums of two numbers that lie between two of bfloat16's, and ties to even.
    first = torch.tensor([1.0, 1.0, 1.0078125, 3.0e38, float("nan"), -1.0]).bfloat16()
    second = torch.tensor([2.0**-9, 2.0**-8, 2.0**-8, 3.0e38, 1.0, -3 * 2.0**-9]).bfloat16()
    rows = torch.stack((first, second), dim=1).contiguous()
    result = kernels.linear(rows, to_panels(torch.ones(1, 2, dtype=torch.bfloat16)), 1)[:, 0]
    expected = (first.float() + second.float()).bfloat16()
    assert torch.equal(result.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
