"""The command line as a whole: codes and the one JSON object."""

import json
import sys

import pytest

from scripts.cli import main


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("up", "--nodes", "-1"), 2, "bad arguments"),
        (("nothing",), 2, "bad arguments"),
        (("up", "--policy", "best"), 1, "--policy best"),
        (("up", "--mode", "slow"), 1, "--mode slow"),
        (("up", "--pool-size", "0"), 1, "--pool-size 0"),
        (("up", "--model", "no-such-model"), 1, "--model no-such-model"),
        (("demo", "--text", "/no/such/file"), 2, "bad arguments"),
    ],
)
def test_bad_arguments_are_one_json_object_on_stdout_too(
    arguments: tuple[str, ...],
    code: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", *arguments, "--json"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == code
    seen = capsys.readouterr()
    said = json.loads(seen.out)
    assert said["ok"] is False
    assert word in said["error"]["message"]
    assert seen.err


def test_help_names_the_command_as_people_type_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "up", "--help"])
    with pytest.raises(SystemExit):
        main.main()
    assert "Usage: moonpool up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["status", "--json"], ("status",)),
        (["--json", "bench", "engine"], ("bench",)),
        (["--help"], ()),
        (["statsu"], ()),
        ([], ()),
    ],
)
def test_only_the_command_that_is_asked_for_is_imported(
    arguments: list[str], asked: tuple[str, ...]
) -> None:
    assert main.asked_in(arguments) == asked


def test_help_lists_every_command_and_a_typing_error_is_told_what_was_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--help"])
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().out
    assert [name for name in main.COMMANDS + main.GROUPS if f" {name} " not in shown] == []
    monkeypatch.setattr(sys, "argv", ["main.py", "statsu"])
    with pytest.raises(SystemExit):
        main.main()
    assert "'status'" in capsys.readouterr().err
