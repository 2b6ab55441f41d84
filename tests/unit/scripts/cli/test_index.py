"""`moonpool index`: help, arguments, and what counts as a difference."""

import pytest
from typer.testing import CliRunner

from scripts.cli import bench, index
from scripts.cli.output import CommandError
from scripts.index.verify import POOL, REDIS, NodeComparison

RUNNER = CliRunner(env={"COLUMNS": "100"})


@pytest.mark.parametrize("command", ["stats", "lookup", "dump", "verify", "hot"])
def test_every_command_has_help_with_examples(command: str) -> None:
    done = RUNNER.invoke(index.app, [command, "--help"])
    assert done.exit_code == 0
    assert "Examples" in done.stdout
    assert "--json" in done.stdout


def test_the_bench_has_help_with_examples() -> None:
    done = RUNNER.invoke(bench.app, ["index", "--help"])
    assert done.exit_code == 0
    assert "Examples" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["lookup"], "--key"),
        (["lookup", "text", "--key", "00" * 16], "one of them"),
        (["lookup", "--key", "xyz"], "32 hex digits"),
        (["dump", "node-1", "--from", "moon"], "--from moon"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], word: str) -> None:
    done = RUNNER.invoke(index.app, arguments)
    assert isinstance(done.exception, CommandError)
    assert word in done.exception.message


def test_a_node_is_equal_when_all_places_say_the_same_or_it_is_gone() -> None:
    same = ("1", 5, "digest")
    one = NodeComparison("n1", {"mirror a": same, "mirror b": same, REDIS: same, POOL: same})
    assert one.is_equal
    for other in (("2", 5, "digest"), ("1", 6, "digest"), ("1", 5, "another")):
        one.seen[REDIS] = other
        assert not one.is_equal
        assert not one.as_json()["ok"]
    one.is_gone = True
    assert one.is_equal
