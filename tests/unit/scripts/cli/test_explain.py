"""`moonpool explain`: its table, its refusals, and which prompt is meant."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from scripts.cli import explain, main
from scripts.cli.explain import explanation_of, refusal_of
from scripts.cli.output import CommandError

RUNNER = CliRunner(env={"COLUMNS": "100", "MOONPOOL_URL": "http://127.0.0.1:9"})
TIMES = {
    "queue_s": 0.5,
    "load_s": 0.25,
    "compute_s": 1.0,
    "overhead_s": 0.02,
    "ttft_s": 1.52,
    "handoff_s": 0.01,
    "tbt_s": 0.0253,
    "tbt_scale": 0.7,
}
UNKNOWN = {"handoff_s": None, "tbt_s": None, "tbt_scale": None}


def candidate(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "prefill": name,
        "node": "node-1",
        "local_blocks": 1,
        "remote_blocks": 3,
        "local_tokens": 256,
        "remote_tokens": 768,
        "predicted": TIMES,
        "cost": 1.625,
        "is_chosen": True,
        "reason": "",
        **changes,
    }


def told(**changes: Any) -> dict[str, Any]:
    loser = candidate(
        "prefill-2",
        local_tokens=0,
        remote_tokens=0,
        predicted=TIMES | UNKNOWN | {"compute_s": 12.5},
        cost=12.5,
        is_chosen=False,
        reason="cost 12.500 s, the winner's 1.625 s",
    )
    return {
        "object": "explanation",
        "model": "m",
        "prompt_tokens": 1_125,
        "prompt_blocks": 4,
        "max_tokens": 16,
        "policy": "moonpool",
        "decode": "decode-1",
        "refusal": None,
        "targets": None,
        "candidates": [candidate("prefill-1"), loser],
        "counts": {"not_best": 1, "draining": 2},
        **changes,
    }


def refused(**changes: Any) -> dict[str, Any]:
    refusal = {"message": "TTFT would be 2.00 s", "type": "x", "param": None, "code": "overloaded"}
    none = {"policy": None, "decode": None, "candidates": [], "counts": {}}
    return told(**none, refusal=refusal) | changes


def shown(what: RenderableType, width: int = 110) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_candidate_is_one_line_and_the_winner_is_marked() -> None:
    lines = shown(explanation_of(told()))
    winner, loser = (line.split() for line in lines if "prefill-" in line)
    assert winner == [
        *("→", "prefill-1", "256", "768", "0.500", "0.250", "1.000", "1.520", "25.3", "1.625"),
    ]
    assert loser == [
        *("prefill-2", "0", "0", "0.500", "0.250", "12.500", "1.520", "-", "12.500"),
        *("cost", "12.500", "s,", "the", "winner's", "1.625", "s"),
    ]
    assert lines[0] == (
        "m: prompt of 1125 tokens (4 full blocks), answer of 16 at most, policy moonpool"
    )
    assert lines[-2:] == ["→ would run here, decode on decode-1", "not candidates: 2 draining"]


def test_every_column_has_its_unit() -> None:
    by_row = [line.split() for line in shown(explanation_of(told()))[2:5]]
    assert by_row == [
        ["cached", "cached"],
        ["local", "remote", "queue", "fetch", "compute", "TTFT", "TBT", "cost"],
        ["prefill", "tokens", "tokens", *"sss", "s", "ms", "s", "why", "it", "lost"],
    ]
    of_dynamo = shown(explanation_of(told(policy="dynamo_cost")))[4].split()
    assert of_dynamo[-4] == "blocks"


def test_all_of_it_fits_80_columns() -> None:
    lines = shown(explanation_of(told()), width=80)
    text = " ".join(" ".join(lines).split())
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in text
    for word in ("prefill-2", "12.500", "winner's", "25.3"):
        assert word in text


def test_an_answer_that_ends_with_the_prefill_has_no_tbt() -> None:
    alone = candidate("prefill-1", predicted=TIMES | UNKNOWN)
    lines = shown(explanation_of(told(decode=None, candidates=[alone], counts={})))
    assert lines[-1] == "→ would run here: the answer ends with the prefill"
    assert [line.split()[8] for line in lines if "prefill-1" in line] == ["-"]


def test_a_refusal_says_what_was_predicted_and_what_is_allowed() -> None:
    targets = {
        "predicted_ttft_ms": 2_000.0,
        "allowed_ttft_ms": 500.0,
        "predicted_tbt_ms": 25.34,
        "allowed_tbt_ms": None,
    }
    assert shown(refusal_of(refused(targets=targets)))[1:] == [
        "would be refused: TTFT would be 2.00 s",
        "  TTFT  predicted 2.00 s, allowed 500 ms",
        "  TBT   predicted 25.3 ms, no target",
        "try: allow more time, or ask when less runs",
    ]


def test_targets_are_told_in_the_figures_of_the_sentence() -> None:
    targets = {
        "predicted_ttft_ms": 50.54,
        "allowed_ttft_ms": 50.51,
        "predicted_tbt_ms": 37.6,
        "allowed_tbt_ms": 0.001,
    }
    assert shown(refusal_of(refused(targets=targets)))[2:4] == [
        "  TTFT  predicted 50.54 ms, allowed 50.51 ms",
        "  TBT   predicted 37.6 ms, allowed 0.001 ms",
    ]


def test_a_refusal_for_want_of_instances_leads_to_status() -> None:
    assert "moonpool status" in shown(refusal_of(refused()))[-1]
    wrong = {"message": "policy: 'x' is none", "code": "bad_request"}
    assert shown(refusal_of(refused(refusal=wrong)))[-1].endswith("'x' is none")


@pytest.mark.parametrize(("answer", "code"), [(told(), 0), (refused(), 1)])
def test_the_exit_code_and_ok_say_whether_it_would_run(
    answer: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, httpx.Response(200, json=answer))
    arguments = ["explain", "-", "--model", "m", "--chat", "--policy", "random"]
    done = RUNNER.invoke(main.make_app("explain", "bill"), arguments, input="Hé")
    assert done.exit_code == code
    assert asked == [
        {
            "model": "m",
            "max_tokens": 256,
            "messages": [{"role": "user", "content": "Hé"}],
            "policy": "random",
        }
    ]
    assert ("would be refused" in done.stdout) is bool(code)
    done = RUNNER.invoke(main.make_app("explain", "bill"), [*arguments, "--json"], input="Hé")
    assert (done.exit_code, json.loads(done.stdout)) == (code, {"ok": not code, **answer})


def answering(monkeypatch: pytest.MonkeyPatch, response: httpx.Response) -> list[dict[str, Any]]:
    """Every request gets this; their bodies."""
    asked: list[dict[str, Any]] = []

    def send(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return response

    real = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **how: real(**how, transport=httpx.MockTransport(send))
    )
    return asked


def test_which_prompt_is_meant_is_asked_and_nonsense_is_named(tmp_path: Path) -> None:
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\xff\xfe")
    empty.touch()
    for arguments, word in (
        ([], "which prompt?"),
        (["x", "--file", str(empty)], "which prompt?"),
        (["--file", str(empty)], "empty"),
        (["--file", str(binary)], "not UTF-8"),
        (["\udcff"], "not UTF-8"),
        (["x"], "no answer from http://127.0.0.1:9"),
        (["x", "--api-key", "é"], "API key"),
        (["x", "--url", "http://host:port"], "--url http://host:port"),
        (["x", "--url", "127.0.0.1:9"], "missing an 'http://'"),
    ):
        done = RUNNER.invoke(main.make_app("explain", "bill"), ["explain", *arguments])
        assert isinstance(done.exception, CommandError), arguments
        assert word in done.exception.message
        assert done.exception.hint


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "--api-key"), (403, "admin key"), (404, "status"), (503, "later"), (504, "later")],
)
def test_what_the_gateway_refuses_is_said_with_what_to_do(
    status: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, httpx.Response(status, json={"error": {"message": "because"}}))
    done = RUNNER.invoke(main.make_app("explain", "bill"), ["explain", "x", "--model", "m"])
    assert isinstance(done.exception, CommandError)
    assert done.exception.message == f"http://127.0.0.1:9 answers {status}: because"
    assert hint in done.exception.hint


@pytest.mark.parametrize("text", ["<html>", "[]", "{}"])
def test_another_server_is_no_gateway(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, httpx.Response(200, text=text))
    done = RUNNER.invoke(main.make_app("explain", "bill"), ["explain", "x", "--model", "m"])
    assert isinstance(done.exception, CommandError)
    assert "--url" in done.exception.hint


@pytest.mark.parametrize("command", ["explain", "bill"])
def test_both_have_help_with_examples(command: str) -> None:
    done = RUNNER.invoke(main.make_app("explain", "bill"), [command, "--help"])
    assert done.exit_code == 0
    assert "Examples" in done.stdout
    assert "--json" in done.stdout


def test_a_closed_stdin_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "sys", SimpleNamespace(stdin=None))
    with pytest.raises(CommandError, match="stdin is closed"):
        explain._text_of("-", None)
