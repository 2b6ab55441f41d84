"""Both ways to copy: bytes, digests, generations, stops; and what happens without a compiler."""

import threading
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shared.transport import copying
from shared.transport.copying import (
    AROUND_CACHE_BYTES,
    RUN,
    Copier,
    NativeCopier,
    PlainCopier,
    Runs,
    Stop,
    is_right,
    load_copier,
)


@pytest.fixture(scope="module", params=["native", "numpy"])
def copier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Copier:
    if request.param == "numpy":
        return PlainCopier()
    native = load_copier(tmp_path_factory.mktemp("cache"))
    if native.name != "native":
        pytest.skip("no C compiler here")
    return native


def runs_of(*parts: tuple[np.ndarray, np.ndarray]) -> Runs:
    """(target, source) by their addresses: the caller keeps the arrays."""
    runs = np.zeros(len(parts), dtype=RUN)
    for run, (target, source) in zip(runs, parts, strict=True):
        run["to"], run["from"] = target.ctypes.data, source.ctypes.data
        run["bytes"] = len(source)
    return runs


def noise(num_bytes: int) -> np.ndarray:
    return np.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=np.uint8)


def test_each_copier_proves_right(copier: Copier) -> None:
    assert is_right(copier)


@pytest.mark.parametrize("size", [1, 63, 4096, 262_143, 262_145, AROUND_CACHE_BYTES + 13])
@pytest.mark.parametrize("shift", [0, 1, 33])
def test_nothing_beside_the_run_is_touched(copier: Copier, size: int, shift: int) -> None:
    source = noise(size)
    target = np.full(size + 128, 0x5A, dtype=np.uint8)
    runs = runs_of((target[shift : shift + size], source))
    assert copier.copy(runs, Stop(), with_digests=True) == 1
    assert np.array_equal(target[shift : shift + size], source)
    assert (target[:shift] == 0x5A).all()
    assert (target[shift + size :] == 0x5A).all()
    assert runs[0]["digest"] == xxhash.xxh3_64_intdigest(source.data)


def test_each_run_has_its_own_digest(copier: Copier) -> None:
    sources = [noise(size) for size in (1_000, 300_000, 17)]
    pairs = [(np.zeros_like(source), source) for source in sources]
    runs = runs_of(*pairs)
    assert copier.copy(runs, Stop(), with_digests=True) == 3
    assert runs["digest"].tolist() == [xxhash.xxh3_64_intdigest(each.data) for each in sources]


def test_another_use_of_the_source_ends_the_copy_before_it(copier: Copier) -> None:
    source, table = noise(100), np.array([7, 8], dtype=np.uint64)
    target = np.zeros(100, np.uint8)
    runs = runs_of((target, source), (target, source))
    runs["generation"], runs["generation_at"] = 7, table.ctypes.data + np.arange(2) * 8
    assert copier.copy(runs, Stop(), with_digests=False) == 1
    table[1] = 7
    assert copier.copy(runs, Stop(), with_digests=False) == 2


def test_a_source_that_changes_its_use_meanwhile_is_not_counted(copier: Copier) -> None:
    source, table = noise(16 << 20), np.array([1], dtype=np.uint64)
    target = np.zeros_like(source)
    runs = runs_of(*[(target, source)] * 16)
    runs["generation"], runs["generation_at"] = 1, table.ctypes.data
    done: list[int] = []
    thread = threading.Thread(
        target=lambda: done.append(copier.copy(runs, Stop(), with_digests=False))
    )
    thread.start()
    table[0] = 2
    thread.join()
    assert done[0] < 16


def test_a_stopped_copy_copies_nothing(copier: Copier) -> None:
    stop = Stop()
    stop.set()
    source, target = noise(10), np.zeros(10, np.uint8)
    runs = runs_of((target, source))
    assert copier.copy(runs, stop, with_digests=False) == 0
    assert not target.any()


@given(st.lists(st.integers(1, 600_000), min_size=1, max_size=4), st.integers(0, 70))
def test_sizes_and_alignments_of_any_kind(sizes: list[int], shift: int) -> None:
    copier = PlainCopier()
    pairs = [(np.zeros(size + shift, np.uint8)[shift:], noise(size)) for size in sizes]
    runs = runs_of(*pairs)
    assert copier.copy(runs, Stop(), with_digests=True) == len(sizes)
    for run, (target, source) in zip(runs, pairs, strict=True):
        assert np.array_equal(target, source)
        assert run["digest"] == xxhash.xxh3_64_intdigest(source.data)


def test_without_a_compiler_numpy_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_copier(tmp_path).name == "numpy"
    assert "install gcc" in caplog.text


def test_a_native_copy_that_is_wrong_here_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if load_copier(tmp_path).name != "native":
        pytest.skip("no C compiler here")

    def forgets_the_last_byte(
        self: NativeCopier, runs: Runs, stop: Stop, *, with_digests: bool
    ) -> int:
        runs["bytes"] -= np.uint64(1)
        return PlainCopier().copy(runs, stop, with_digests=with_digests)

    monkeypatch.setattr(copying.NativeCopier, "copy", forgets_the_last_byte)
    assert load_copier(tmp_path).name == "numpy"
    assert "wrong" in caplog.text
