"""Huge pages, NUMA nodes and pages touched ahead: asked for, had or refused with what to do."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.transport import segment_memory
from shared.transport.node_files import NodeFiles
from shared.transport.segment import MemoryWish, Segment, SegmentError


def create(path: Path, wish: MemoryWish) -> Segment:
    return Segment.create(path, num_slots=4, block_bytes=8192, wish=wish)


@pytest.fixture
def no_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(segment_memory, "huge_mounts", lambda: [])
    monkeypatch.setattr(segment_memory, "SHMEM_HUGE", tmp_path / "nothing")


def test_required_huge_pages_that_are_not_there_are_refused_with_what_to_do(
    tmp_path: Path, no_huge_pages: None
) -> None:
    with pytest.raises(SegmentError, match=r"MOONPOOL_HUGE_PAGES=require.*vm\.nr_hugepages"):
        create(tmp_path / "n.1.seg", MemoryWish("require"))
    assert not list(tmp_path.glob("*.seg"))


def test_huge_pages_that_were_only_tried_fall_back_and_say_so(
    tmp_path: Path, no_huge_pages: None
) -> None:
    segment = create(tmp_path / "n.1.seg", MemoryWish("try"))
    assert "no huge pages to be had" in segment.memory
    segment.close()


def test_a_segment_elsewhere_is_found_by_its_name_and_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain folder stands for the hugetlbfs."""
    (tmp_path / "huge").mkdir()
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(segment_memory, "huge_mounts", lambda: [tmp_path / "huge"])
    files = NodeFiles(tmp_path / "shared", "n", "1")
    segment = create(files.segment, MemoryWish("require"))
    assert segment.memory.startswith("2 MiB pages")
    worker = Segment.open(segment.info, is_writable=True)
    worker.block(3)[:] = 7
    assert (segment.block(3) == 7).all()
    assert files.segment.stat().st_size % segment_memory.HUGE_PAGE_BYTES == 0
    worker.close()
    segment.close()
    files.remove()
    assert not list((tmp_path / "huge").iterdir())
    assert not list((tmp_path / "shared").iterdir())


def test_touching_changes_no_byte_and_stops_when_told(tmp_path: Path) -> None:
    segment = create(tmp_path / "n.1.seg", MemoryWish())
    segment.bytes[:] = 5
    stop = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        segment_memory.touch(segment.bytes, threads, stop)
        assert (segment.bytes == 5).all()
        stop.set()
        assert segment_memory.touch(segment.bytes, threads, stop)
    segment.close()


def test_a_numa_node_is_skipped_on_a_host_with_one_and_refused_when_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_memory, "numa_nodes", lambda: [0])
    segment = create(tmp_path / "n.1.seg", MemoryWish(numa_node=0))
    assert "this host has one" in segment.memory
    segment.close()
    monkeypatch.setattr(segment_memory, "numa_nodes", lambda: [0, 1])
    with pytest.raises(SegmentError, match="MOONPOOL_NUMA_NODE=7"):
        create(tmp_path / "n.2.seg", MemoryWish(numa_node=7))


@pytest.mark.skipif(
    segment_memory.SYS_SET_MEMPOLICY is None, reason="no number of the call for this machine"
)
def test_the_policy_of_the_thread_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_memory, "numa_nodes", lambda: [0, 1])
    try:
        with segment_memory.on_numa_node(0) as done:
            assert done == "bound to NUMA node 0"
    except segment_memory.MemoryKindError as error:
        pytest.skip(str(error))
