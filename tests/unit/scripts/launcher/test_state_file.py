"""How commands find a running cluster."""

import dataclasses
import stat
from pathlib import Path

import pytest

from scripts.launcher import state_file
from shared.runtime.nats_access import NatsAccess
from shared.runtime.tls import TlsFiles


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


ACCESS = NatsAccess("admin", "secret", TlsFiles(Path("/run/ca.pem")))


def mine() -> state_file.RunningCluster:
    return state_file.describe(
        base_url="http://127.0.0.1:1",
        nats_url="nats://x",
        admin_key="k",
        run_dir=Path("/run"),
        nats_access=ACCESS,
    )


def test_a_running_cluster_is_found_and_its_file_is_private() -> None:
    path = state_file.write(mine())
    assert state_file.find_running() == [mine()]
    assert state_file.find_running()[0].nats_access == ACCESS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_of_a_dead_or_another_process_is_ignored_and_removed() -> None:
    reused = dataclasses.replace(mine(), started_s=1.0)
    path = state_file.write(reused)
    assert state_file.find_running() == []
    assert not path.exists()


def test_rubbish_is_ignored() -> None:
    path = state_file.write(mine())
    (path.parent / "1.json").write_text("{")
    (path.parent / "2.json").write_text('{"pid": 3}')
    assert state_file.find_running() == [mine()]
