"""What a machine lacks is named with what to do; a machine that is fine exits with 0."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scripts.cli.main import app
from scripts.cli.output import CommandError


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **settings: str) -> tuple[int, Any]:
    monkeypatch.setenv("MOONPOOL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MOONPOOL_SHARED_DIR", str(tmp_path / "shared"))
    for name, value in settings.items():
        monkeypatch.setenv(f"MOONPOOL_{name.upper()}", value)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def test_a_machine_that_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, shown = run(monkeypatch, tmp_path, pool_bytes="1000000", transports="local,tcp")
    assert (code, shown["ok"]) == (0, True)
    found = {check["name"]: check["found"] for check in shown["checks"]}
    assert found["transport local"] == "there"
    assert found["transport tcp"].startswith("would listen at ")
    assert found["copies"].split(" ")[0] in ("native", "numpy")
    assert any(memory.startswith("cpu:") for memory in shown["topology"]["matrix"])


def test_a_pool_that_does_not_fit_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, shown = run(monkeypatch, tmp_path, pool_bytes=str(1 << 60), transports="local")
    assert (code, shown["ok"]) == (1, False)
    (problem,) = [check["problem"] for check in shown["checks"] if not check["ok"]]
    assert "lower MOONPOOL_POOL_BYTES" in problem


def test_a_transport_that_cannot_be_opened_is_a_problem_when_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = "no-such-host.invalid"
    code, shown = run(monkeypatch, tmp_path, transports="tcp", tcp_host=host, pool_bytes="4096")
    assert code == 1
    assert f"MOONPOOL_TCP_HOST={host}" in json.dumps(shown["checks"])
    code, shown = run(monkeypatch, tmp_path, transports="local,tcp")
    assert code == 0
    assert f"MOONPOOL_TCP_HOST={host}" in json.dumps(shown["checks"])


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"MOONPOOL_TRANSPORTS: .*'tpc' is no transport"):
        run(monkeypatch, tmp_path, transports="tpc")
