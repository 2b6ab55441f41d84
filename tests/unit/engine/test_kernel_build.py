"""Which kernels are built, and what is used where they cannot be."""

import logging
import platform
import shutil
from pathlib import Path

import pytest

from shared.engine import kernel_build, kernels
from shared.engine.loaded_model import load_model
from tests.support.engine import EngineBench, random_tokens

AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
BF16, AMX = {"avx512_bf16"}, {"amx_tile", "amx_bf16"}
ALL = frozenset({"avx2", "fma", *AVX512, *BF16, *AMX})


@pytest.fixture
def some_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled at once, on any CPU."""
    source = tmp_path / "some.c"
    source.write_text("int some(void) { return 0; }")
    monkeypatch.setattr(kernel_build, "_SOURCES", (source,))
    monkeypatch.setattr(kernel_build, "cpu_flags", lambda: ALL)
    monkeypatch.setattr(kernel_build, "may_use_tiles", lambda: True)
    if shutil.which("gcc") is None or platform.machine() != "x86_64":
        pytest.skip("no gcc, or none for these instructions")


@pytest.mark.parametrize(
    ("flags", "in_float32", "in_bfloat16"),
    [
        ({"sse4_2"}, [], []),
        ({"avx2"}, [], []),
        ({"avx2", "fma"}, ["avx2"], ["avx2"]),
        ({"avx2", "fma", *AVX512}, ["avx512", "avx2"], ["avx2"]),
        ({"avx2", "fma", *AVX512, *BF16}, ["avx512", "avx2"], ["avx512", "avx2"]),
        ({"avx2", "fma", *AVX512, *BF16, *AMX}, ["avx512", "avx2"], ["amx", "avx512", "avx2"]),
        ({"avx2", "fma", *AVX512, *AMX}, ["avx512", "avx2"], ["avx2"]),
    ],
)
def test_the_fastest_instructions_of_the_cpu_come_first(
    flags: set[str], in_float32: list[str], in_bfloat16: list[str]
) -> None:
    assert kernel_build.fastest_isas(frozenset(flags), is_bfloat16=False) == in_float32
    assert kernel_build.fastest_isas(frozenset(flags), is_bfloat16=True) == in_bfloat16


def test_where_the_system_keeps_amx_avx512_is_built(
    some_source: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = kernel_build.build_kernels(tmp_path, is_bfloat16=True)
    assert found is not None
    assert found[1] == "amx"
    monkeypatch.setattr(kernel_build, "may_use_tiles", lambda: False)
    found = kernel_build.build_kernels(tmp_path, is_bfloat16=True)
    assert found is not None
    assert found[1] == "avx512"
    assert "keeps AMX from this process" in caplog.text
    assert kernel_build.build_kernels(tmp_path, is_bfloat16=True, isa="amx") is None


def test_in_float32_tiles_are_not_asked_for(
    some_source: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build, "may_use_tiles", lambda: pytest.fail("asked"))
    found = kernel_build.build_kernels(tmp_path, is_bfloat16=False)
    assert found is not None
    assert found[1] == "avx512"


def test_what_a_compiler_is_too_old_for_gives_way_to_the_next(
    some_source: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = tmp_path / "gcc"
    old.write_text(
        '#!/bin/sh\ncase "$*" in *-mamx-tile*)\n'
        "  echo \"gcc: error: unrecognized option '-mamx-tile'\" >&2; exit 1;;\n"
        f'esac\nexec {shutil.which("gcc")} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(old))
    with caplog.at_level(logging.WARNING):
        found = kernel_build.build_kernels(tmp_path, is_bfloat16=True)
    assert found is not None
    assert found[1] == "avx512"
    assert found[0].name.startswith("kernels-avx512-")
    assert "kernels-amx: not built; avx512 is tried: gcc: error: unrecognized" in caplog.text


def test_without_a_compiler_the_engine_runs_on_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    loaded = load_model("dummy:tiny", cache_dir=tmp_path)
    assert loaded.model.kernels is None
    bench = EngineBench(loaded, num_slots=1)
    assert len(bench.greedy(random_tokens(10, seed=1), [0], max_tokens=3)) == 3


def test_a_library_that_cannot_be_loaded_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = tmp_path / "cut-short.so"
    library.touch()
    monkeypatch.setattr(kernels, "build_kernels", lambda *_, **__: (library, "avx2"))
    loaded = load_model("dummy:tiny", cache_dir=tmp_path)
    assert loaded.model.kernels is None
    assert "cut-short.so: file too short" in caplog.text
    assert "MOONPOOL_CACHE_DIR" in caplog.text


def test_a_source_that_does_not_compile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("int main( {")
    monkeypatch.setattr(kernel_build, "_SOURCES", (broken,))
    assert kernel_build.build_kernels(tmp_path, is_bfloat16=False) is None
