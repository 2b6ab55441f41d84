"""What a skipped test says is what its reader has to change."""

from pathlib import Path

import pytest

from tests.support.compose_project import why_not

NO_PLUGIN = """\
case "$1" in
compose)
    echo "docker: unknown command: docker compose" >&2
    echo >&2
    echo "Run 'docker --help' for more information" >&2
    exit 1 ;;
esac"""
NO_DAEMON = """\
case "$1" in
info)
    echo "ERROR: Cannot connect to the Docker daemon" >&2
    echo "errors pretty printing info" >&2
    exit 1 ;;
esac"""
CASES = [
    (NO_PLUGIN, "docker compose version: docker: unknown command: docker compose"),
    (NO_DAEMON, "docker info: ERROR: Cannot connect to the Docker daemon"),
    ("exit 3", "docker compose version: exit code 3"),
    ("exit 0", ""),
]


@pytest.mark.parametrize(("script", "reason"), CASES)
def test_why_compose_cannot_run_is_what_docker_says_first(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == reason


def test_without_docker_the_reason_is_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not() == "there is no docker"
