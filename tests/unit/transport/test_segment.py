"""The segment file: what its header says, who may map it, what happens when it does not fit."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.transport.segment import FEW_SLOTS, Segment, SegmentError, data_offset_of


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.create(tmp_path / "n.1.seg", num_slots=4, block_bytes=8192)


def test_a_mapped_segment_shares_bytes_and_generations(segment: Segment) -> None:
    worker = Segment.open(segment.info, is_writable=True)
    peer = Segment.open(segment.info, is_writable=False)
    worker.block(2)[:] = 9
    segment.generations[2] = 7
    assert (segment.block(2) == 9).all()
    assert (peer.block(2) == 9).all()
    assert not peer.block(1).any()
    assert worker.generations_hold([2, 0], [7, 0])
    assert not worker.generations_hold([2, 0], [7, 1])
    assert worker.generations_hold([], [])
    many = 2 * FEW_SLOTS
    assert worker.generations_hold([2] * many, [7] * many)
    assert not worker.generations_hold([2] * many, [7] * (many - 1) + [6])


def test_only_the_owner_writes_the_table_and_only_workers_write_bytes(segment: Segment) -> None:
    worker = Segment.open(segment.info, is_writable=True)
    peer = Segment.open(segment.info, is_writable=False)
    for other in (worker, peer):
        with pytest.raises(ValueError, match="read-only"):
            other.generations[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        peer.block(0)[0] = 1
    assert peer.data.readonly
    assert not worker.data.readonly


def test_slots_start_at_a_whole_huge_page_and_fill_the_rest(segment: Segment) -> None:
    assert segment.info.data_offset == 2 << 20
    assert data_offset_of(1_000_000) == 8 << 20
    assert segment.data.nbytes == 4 * 8192
    assert segment.info.path.stat().st_size == (2 << 20) + 4 * 8192
    assert segment.info.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("field", "value"),
    [("nonce", bytes(16)), ("num_slots", 5), ("block_bytes", 4096), ("data_offset", 4 << 20)],
)
def test_a_segment_that_is_not_as_described_is_refused(
    segment: Segment, field: str, value: object
) -> None:
    with pytest.raises(SegmentError, match=field):
        Segment.open(replace(segment.info, **{field: value}), is_writable=False)


def test_what_is_no_segment_is_refused(segment: Segment, tmp_path: Path) -> None:
    path = segment.info.path
    with pytest.raises(SegmentError, match="No such file"):
        Segment.open(replace(segment.info, path=tmp_path / "absent"), is_writable=False)
    os.truncate(path, (2 << 20) + 100)
    with pytest.raises(SegmentError, match="shorter than its header says"):
        Segment.open(segment.info, is_writable=False)
    path.write_bytes(b"MOONPOOL" + b"\xff" * 60)
    with pytest.raises(SegmentError, match="not a segment of layout"):
        Segment.open(segment.info, is_writable=False)
    path.write_bytes(b"")
    with pytest.raises(SegmentError, match="too short"):
        Segment.open(segment.info, is_writable=False)


def test_a_segment_that_does_not_fit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "n.1.seg"
    with pytest.raises(SegmentError, match="MOONPOOL_POOL_BYTES"):
        Segment.create(path, num_slots=1 << 20, block_bytes=1 << 40)
    assert not path.exists()


def test_closing_keeps_the_memory_while_somebody_has_a_view(segment: Segment) -> None:
    worker = Segment.open(segment.info, is_writable=True)
    kept = np.frombuffer(worker.data, dtype=np.uint8)
    worker.close()
    kept[0] = 5
    assert segment.block(0)[0] == 5
