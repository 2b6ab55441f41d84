"""The journal's file: what happens to it holds up no placement."""

from pathlib import Path

import pytest

from services.conductor.journal_file import JournalFile
from shared.scheduling.events import TimerFired


async def test_a_file_that_cannot_be_written_is_said_once_and_says_later_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "later" / "journal"
    journal = JournalFile(path, "# header")
    for now_s in (1.0, 2.0):
        journal.add(now_s, TimerFired(), [])
        await journal.flush()
    assert caplog.text.count("MOONPOOL_JOURNAL") == 1
    path.parent.mkdir()
    journal.add(3.0, TimerFired(), [])
    await journal.flush()
    header, lost, step = path.read_text().splitlines()
    assert (header, lost) == ("# header", "# 2 steps are missing here")
    assert "TimerFired" in step
