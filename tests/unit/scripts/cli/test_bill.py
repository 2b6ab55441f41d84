"""`moonpool bill`: what it shows, and how it finds it."""

import io
import json
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from scripts.cli import main
from scripts.cli.bill import view_of
from scripts.cli.output import CommandError
from shared.messages.bill import FinishedBill, Reuse, Times
from shared.messages.common import InstanceRef

RUNNER = CliRunner(env={"COLUMNS": "100", "MOONPOOL_URL": "http://127.0.0.1:9"})
PREFILL = InstanceRef(id="prefill-1", incarnation="i", node="node-1")
DECODE = InstanceRef(id="decode-2", incarnation="i", node="node-2")


def bill(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_id": "r-1",
        "model": "m",
        "prefill": PREFILL,
        "decode": DECODE,
        "predicted": Times(queue_s=0.1, compute_s=1.0, ttft_s=1.1, handoff_s=0.02, tbt_s=0.04),
        "real": Times(
            queue_s=0.2, load_s=0.3, compute_s=1.5, overhead_s=0.05, ttft_s=2.05, handoff_s=0.03,
            tbt_s=0.0513,
        ),
        "reuse": Reuse(
            prompt_tokens=1_125, local_tokens=256, remote_tokens=512, disk_tokens=128,
            fetched_bytes=2_000_000, streamed_bytes=3_500_000, transport="tcp",
        ),
        "output_tokens": 16,
        "decode_s": 0.75,
    }  # fmt: skip
    return FinishedBill(**fields | changes).model_dump(mode="json", exclude={"v"})


def shown(found: dict[str, Any]) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(view_of(found))
    return [line.strip() for line in console.export_text().splitlines()]


def test_it_says_where_it_ran_what_was_reused_and_both_times() -> None:
    lines = shown(bill())
    assert lines[:5] == [
        "r-1, m",
        "prefill prefill-1 on node-1, decode decode-2 on node-2",
        "prompt of 1125 tokens: 256 cached local (128 from SSD), 512 remote, 357 computed",
        "moved: 2.0 MB fetched, 3.5 MB to decode, over tcp",
        "answer of 16 tokens, 0.750 s after the first",
    ]
    headings, times = (line.split() for line in lines if "other" in line or "1.000 →" in line)
    assert headings[-5:] == ["queue", "load", "compute", "other", "TTFT"]
    assert " ".join(times) == (
        "0.100 → 0.200 0.000 → 0.300 1.000 → 1.500 0.000 → 0.050 1.100 → 2.050"
    )
    after = " ".join(next(line for line in lines if "0.051" in line).split())
    assert after == "0.020 → 0.030 0.040 → 0.051"
    assert "After token 0, in seconds" in lines


def test_where_nothing_moved_no_way_is_named() -> None:
    assert "moved: nothing" in shown(bill(reuse=Reuse(prompt_tokens=100, local_tokens=64)))


def test_one_token_has_no_tbt_and_without_decode_nothing_comes_after_token_0() -> None:
    assert "0.040 → -" in " ".join(shown(bill(output_tokens=1)))
    assert "answer of 1 tokens" in shown(bill(output_tokens=1))
    assert not any("TBT" in line for line in shown(bill(decode=None, output_tokens=1)))


def test_scored_prompts_are_computed_whole_and_what_went_wrong_is_said() -> None:
    scored = bill(reuse=Reuse(prompt_tokens=100, local_tokens=64, scored_tokens=99), attempts=2)
    text = "\n".join(shown(scored))
    assert "100 computed" in text
    assert "2 attempts" in text
    preempted = bill(real=Times(preemptions=3, preempted_s=1.5))
    assert "preempted 3 times, 1.500 s in all" in shown(preempted)


def answering(monkeypatch: pytest.MonkeyPatch, known: str) -> list[str]:
    """A gateway that has the bill of one; the paths that it was asked for."""
    asked: list[str] = []

    def send(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        if asked[-1] == f"/v1/bills/{known}":
            return httpx.Response(200, json=bill())
        return httpx.Response(404, json={"error": {"message": "No bill of it here"}})

    real = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **how: real(**how, transport=httpx.MockTransport(send))
    )
    return asked


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("r-1", ["r-1"]),
        ("chatcmpl-r-1", ["chatcmpl-r-1", "r-1"]),
        ("cmpl-r-1", ["cmpl-r-1", "r-1"]),
        ("a/b ?", ["a%2Fb%20%3F"]),
        ("..", ["%2E%2E"]),
        ("v1.2", ["v1%2E2"]),
    ],
)
def test_an_id_is_looked_for_as_given_and_then_without_the_answers_prefix(
    given: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = answering(monkeypatch, asked[-1])
    done = RUNNER.invoke(main.make_app("explain", "bill"), ["bill", given, "--json"])
    assert seen == [f"/v1/bills/{one}" for one in asked]
    assert json.loads(done.stdout) == {"ok": True, **bill()}


@pytest.mark.parametrize("given", ["other", ""])
def test_an_unknown_id_is_said_with_where_ids_are(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "r-1")
    done = RUNNER.invoke(main.make_app("explain", "bill"), ["bill", given])
    assert isinstance(done.exception, CommandError)
    assert ("No bill of it here" in done.exception.message) is bool(given)
    assert "moonpool top" in done.exception.hint
    assert "--url" in done.exception.hint


def test_what_is_too_long_for_an_id_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, "r-1")
    done = RUNNER.invoke(main.make_app("explain", "bill"), ["bill", "x" * 90_000])
    assert isinstance(done.exception, CommandError)
    assert done.exception.message == "no id has 90000 characters"
    assert not asked
