"""What the checkout's set-up compiles, whatever the shell says about bytecode."""

import importlib.util
import sys
from pathlib import Path

import pytest

from scripts import environment

ROOT = Path(__file__).parents[3]
COMMANDS = ("check", "fix", "moonpool", "test")


@pytest.mark.parametrize("name", environment.USED_BY_ALL + environment.USED_BY_TESTS)
def test_what_is_compiled_is_there(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_its_steps_may_write_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(environment, "LOG", tmp_path / "install.log")
    asked = "import sys; sys.exit(sys.dont_write_bytecode)"
    environment.run("asking", [sys.executable, "-c", asked])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of_a_checkout_may_write_it_too(name: str) -> None:
    lines = (ROOT / "scripts" / name).read_text().splitlines()
    assert lines.index("set -eu") + 1 == next(
        at for at, line in enumerate(lines) if line.startswith("unset PYTHONDONTWRITEBYTECODE")
    )
