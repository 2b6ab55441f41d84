"""The journal on a disk that takes no more."""

import logging
from pathlib import Path

import pytest

from services.conductor.journal_file import JournalFile
from shared.scheduling.events import TimerFired

LOG = logging.getLogger("test.journal")


async def test_a_full_disk_switches_the_journal_off_with_a_warning_and_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = JournalFile(Path("/dev/full"), "# header", LOG)
    journal.add(0.0, TimerFired(), ())
    await journal.flush()
    assert not journal.is_on
    assert "No space left on device" in caplog.text
    assert "MOONPOOL_JOURNAL" in caplog.text
    lost = journal.lost_total
    assert lost >= 1
    journal.add(1.0, TimerFired(), ())
    await journal.flush()
    assert journal.lost_total == lost + 1
    await journal.run()
    assert caplog.text.count("is off from now on") == 1


async def test_a_file_that_cannot_be_opened_ends_nothing_else(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "missing" / "journal.jsonl", "# header", LOG)
    await journal.run()
    assert not journal.is_on


async def test_lines_that_did_not_fit_are_counted_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.conductor.journal_file.MAX_WAITING", 2)
    path = tmp_path / "journal.jsonl"
    journal = JournalFile(path, "# header", LOG)
    for now_s in range(4):
        journal.add(now_s, TimerFired(), ())
    await journal.flush()
    journal.add(9.0, TimerFired(), ())
    await journal.flush()
    lines = path.read_text().splitlines()
    assert (lines[0], lines[2]) == ("# header", "# 3 steps are missing here")
    assert (len(lines), journal.lost_total) == (4, 3)
