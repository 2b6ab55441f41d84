"""Choosing a device, what a kv_format says of it, and FlashInfer where it is installed."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from shared.engine import device as device_module
from shared.engine.attention_plain import CausalMask, _attend_by_head, _attend_by_kv_head
from shared.engine.copy_streams import InlineStreams
from shared.engine.cpu_isa import cpu_isa
from shared.engine.decode import DecodeEngine
from shared.engine.device import CPU, compute_device, decode_attention_kind, describe_cuda
from shared.engine.errors import EngineError
from shared.engine.flashinfer_attention import FlashInferAttention, flashinfer_fits
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.paged_decode import EachAttention, PagedDecodeAttention, page_tokens_of
from shared.engine.rotary import RotaryTable
from tests.support.engine import EngineBench, random_tokens

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some CPU
flags\t\t: fpu avx2 fma avx512f amx_bf16

processor\t: 1
vendor_id\t: SomebodyElse
"""


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "", "cuda:0:1"])
def test_an_unknown_device_is_refused_by_name(name: str) -> None:
    with pytest.raises(EngineError, match=r"^device: .* is not cpu, cuda or cuda:N"):
        compute_device(name, is_exact=True)


def test_cuda_without_a_device_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(EngineError, match=r"built without CUDA; .* set MOONPOOL_DEVICE=cpu"):
        load_model("dummy:tiny", cache_dir=tmp_path, device="cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(EngineError, match="no CUDA device is visible"):
        load_model("dummy:tiny", cache_dir=tmp_path, device="cuda:1")


def test_a_device_that_is_not_there_is_told_from_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(EngineError, match=r"cuda:2 .* 2 CUDA devices here \(cuda:0 to cuda:1\)"):
        compute_device("cuda:2", is_exact=True)


@pytest.mark.parametrize("linear_mode", ["cublas"])
def test_products_of_cuda_are_refused_on_a_cpu(tmp_path: Path, linear_mode: Any) -> None:
    with pytest.raises(EngineError, match=r"^linear_mode: .cublas. needs a CUDA device"):
        load_model("dummy:tiny", cache_dir=tmp_path, linear_mode=linear_mode)


def test_exact_never_attends_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module.importlib.util, "find_spec", lambda name: object())
    assert decode_attention_kind(is_exact=True) == "each"
    assert decode_attention_kind(is_exact=False) == "flashinfer"
    monkeypatch.setattr(device_module.importlib.util, "find_spec", lambda name: None)
    assert decode_attention_kind(is_exact=False) == "batched"


def test_the_format_of_a_gpu_names_what_chooses_its_kernels() -> None:
    gpu = SimpleNamespace(name="Some GPU", major=9, minor=0, multi_processor_count=132)
    assert describe_cuda(gpu).startswith("cuda sm_90 132 SMs, CUDA ")
    assert describe_cuda(gpu).endswith("Some GPU")
    fewer = SimpleNamespace(**(vars(gpu) | {"multi_processor_count": 114}))
    assert describe_cuda(fewer) != describe_cuda(gpu)


def test_the_model_of_a_cpu_is_named_beside_its_instructions(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(CPUINFO)
    other.write_text(CPUINFO.replace("143", "207"))
    assert cpu_isa(cpuinfo=one).endswith(" amx_bf16+avx2+avx512f+fma GenuineIntel/6/143")
    assert cpu_isa(cpuinfo=one) != cpu_isa(cpuinfo=other)


def test_two_cpu_models_share_a_root_with_our_kernels_only(
    tiny: LoadedModel, tiny_torch: LoadedModel, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    monkeypatch.setattr(device_module, "cpu_isa", lambda: "another CPU")
    for loaded in (tiny, tiny_torch):
        again = load_model("dummy:tiny", cache_dir=cache_dir, linear_mode=loaded.model.linear_mode)
        is_equal = again.kv_format.root() == loaded.kv_format.root()
        assert is_equal == (loaded.model.kernels is not None)


def test_another_table_of_rope_is_another_root(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """A last bit of one cosine, as another CPU's torch may have it."""
    if tiny.model.kernels is None:
        pytest.skip("our kernels are not here")
    right = RotaryTable.__init__

    def off_by_a_bit(self: RotaryTable, *arguments: Any) -> None:
        right(self, *arguments)
        self._cos[3, 1] = torch.nextafter(self._cos[3, 1], torch.tensor(2.0))

    monkeypatch.setattr(RotaryTable, "__init__", off_by_a_bit)
    again = load_model("dummy:tiny", cache_dir=cache_dir)
    assert again.kv_format.linear_mode == tiny.kv_format.linear_mode
    assert again.kv_format.root() != tiny.kv_format.root()


@pytest.mark.parametrize("heads", [4, 9, 3])
@pytest.mark.parametrize("window", [None, 20])
def test_attention_as_cuda_takes_it_gives_the_same(heads: int, window: int | None) -> None:
    kv_heads = 3 if heads % 3 == 0 else 2
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn(6, heads, 16, generator=generator)
    keys, values = torch.randn(2, 40, kv_heads, 16, generator=generator)
    mask = CausalMask(8, 64, torch.float32, window).at(6, 34, 40)
    expected = _attend_by_head(query, keys, values, mask)
    torch.testing.assert_close(_attend_by_kv_head(query, keys, values, mask), expected)


class FakeWrapper:
    """FlashInfer's decode wrapper by its documentation, computed plainly."""

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        for tensor in (indptr, indices, last_page_len):
            assert tensor.dtype == torch.int32
        self._plan = indptr, indices, last_page_len, window_left

    def run(self, query: torch.Tensor, pages: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        indptr, indices, last_page_len, window_left = self._plan
        rows = []
        for row, one in enumerate(query):
            own = indices[indptr[row] : indptr[row + 1]].long()
            count = (len(own) - 1) * pages[0].shape[1] + int(last_page_len[row])
            first = 0 if window_left < 0 else max(0, count - 1 - window_left)
            keys, values = (part[own].flatten(0, 1)[first:count].float() for part in pages)
            group = one.shape[0] // keys.shape[1]
            scores = (
                torch.einsum("hd,thd->ht", one.float(), keys.repeat_interleave(group, dim=1))
                / one.shape[1] ** 0.5
            )
            rows.append(
                torch.einsum("ht,thd->hd", scores.softmax(-1), values.repeat_interleave(group, 1))
            )
        return torch.stack(rows).to(query.dtype)


@pytest.mark.parametrize("window", [None, 50])
def test_flashinfer_gets_the_pages_of_each_sequence(
    tiny_torch_bf16: LoadedModel, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    fake = ModuleType("flashinfer")
    fake.BatchDecodeWithPagedKVCacheWrapper = FakeWrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    loaded, logits = tiny_torch_bf16, []
    for kind in ("each", "flashinfer"):
        model = loaded.model.with_layers(loaded.layout.num_layers)
        model.device = replace(CPU, decode_attention=kind)  # type: ignore[arg-type]
        if window is not None:
            model.config = replace(model.config, window=window, windowed_layers=frozenset({1}))
        bench = EngineBench(loaded, num_slots=4)
        pages = page_tokens_of(loaded.layout)
        cpu = torch.device("cpu")
        step = (
            EachAttention(model.config, pages, cpu)
            if kind == "each"
            else FlashInferAttention(model.config, loaded.layout, pages, cpu)
        )
        attention = PagedDecodeAttention(
            loaded.layout, InlineStreams(), step, capacity_tokens=1000, device=cpu
        )
        engine = DecodeEngine(model, loaded.layout, 1000, attention=attention)
        for slot, length in enumerate((300, 17, 64)):
            bench.prefill(random_tokens(length, seed=slot), [slot])
            bench.join(engine, str(slot), [slot], length, room=2)
        logits.append(engine.step([("0", 1, 300), ("2", 2, 64), ("1", 3, 17)]))
    torch.testing.assert_close(logits[1], logits[0], rtol=0.1, atol=0.15)


def test_shapes_that_flashinfer_has_no_kernels_for_are_left_to_torch(
    tiny_torch_bf16: LoadedModel,
) -> None:
    config, layout = tiny_torch_bf16.config, tiny_torch_bf16.layout
    usual = replace(config, num_heads=9, num_kv_heads=3), replace(layout, head_dim=64)
    assert flashinfer_fits(*usual)
    assert not flashinfer_fits(usual[0], replace(usual[1], dtype="float32"))
    assert not flashinfer_fits(usual[0], replace(usual[1], head_dim=80))
    assert not flashinfer_fits(replace(usual[0], num_heads=21), usual[1])
