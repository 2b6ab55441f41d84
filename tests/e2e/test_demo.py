"""The demo with the real model: what the project is for, checked as a user sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.cli.demo import FOLDER

pytestmark = pytest.mark.e2e
FULL_TEXT = (FOLDER / "text.md").read_text()
# Two grid chunks: enough to be shared, and quick.
SHORT_TEXT = FULL_TEXT.partition("Only beginnings can be reused.")[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SHORT_TEXT, id="short"),
        pytest.param(FULL_TEXT, id="full", marks=pytest.mark.slow),
    ],
)
def test_demo_shows_local_and_remote_hits_that_change_no_token(
    text: str, one_real_cluster: None, tmp_path: Path
) -> None:
    (tmp_path / "text.md").write_text(text)
    command = ["demo", "--json", "--max-tokens", "8", "--text", str(tmp_path / "text.md")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "scripts.cli.main", *command],
        capture_output=True,
        text=True,
        # A home of its own: a cluster that runs here already is not meant.
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout)
    assert shown["ok"] is True
    requests = shown["requests"]
    assert [request["cached_from"] for request in requests[:4]] == [
        "none",
        "local",
        "remote",
        "local",
    ]
    assert all(request["equal_to_cold"] for request in requests)
    assert requests[2]["bytes_moved"] > 0
    assert requests[3]["bytes_moved"] > 0
    computed, local = requests[0], requests[1]
    assert local["ttft_s"] < computed["ttft_s"]
