"""One question as a client asks it, and what became of it: right, wrong, or which clear error."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from scripts.cli.output import CommandError
from shared.runtime.clock import monotonic_s

HANG_S = 60.0
"""An answer that is not complete by then hangs."""
TOKEN_IDS = (3, 500)
Kind = Literal["right", "wrong", "refused", "failed", "cut", "hang", "left"]
"""refused: an HTTP error. failed: an error as the last event of a stream. cut: no HTTP answer, or a
connection that ended in mid-answer. left: the client did not wait."""
GOOD: tuple[Kind, ...] = ("right", "left")


@dataclass(frozen=True, slots=True)
class Question:
    """Greedy, with the answer of a cold run."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """A gateway and the right to ask it."""

    base_url: str
    model: str
    key: str


@dataclass(slots=True)
class Outcome:
    """Of one question."""

    kind: Kind = "hang"
    detail: str = ""
    asked_s: float = 0.0
    ended_s: float = 0.0
    first_s: float = 0.0
    """When the first token came; 0: none did."""
    gap_s: float = 0.0
    """The longest time between two events of the stream."""

    @property
    def is_good(self) -> bool:
        return self.kind in GOOD


@dataclass(slots=True)
class _Stream:
    outcome: Outcome
    tokens: list[int] = field(default_factory=list)
    is_whole: bool = False
    last_s: float = 0.0

    def take(self, event: dict[str, Any], now_s: float) -> bool:
        """False when it is the error that ends the stream."""
        if "error" in event:
            self.outcome.kind, self.outcome.detail = "failed", str(event["error"])
            return False
        for choice in event["choices"]:
            new = choice.get("token_ids") or []
            if new and self.tokens:
                self.outcome.gap_s = max(self.outcome.gap_s, now_s - self.last_s)
            elif new:
                self.outcome.first_s = now_s
            if new:
                self.tokens += new
                self.last_s = now_s
            self.is_whole = self.is_whole or choice.get("finish_reason") is not None
        return True


def body_of(
    where: Where, prompt: tuple[int, ...], max_tokens: int, **fields: Any
) -> dict[str, Any]:
    return {
        "model": where.model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


async def ask(
    http: httpx.AsyncClient,
    where: Where,
    question: Question,
    fields: Mapping[str, Any],
    *,
    patience_s: float = HANG_S,
) -> Outcome:
    """Stream the answer and compare; a client with less patience than `HANG_S` leaves."""
    outcome = Outcome(asked_s=monotonic_s())
    stream = _Stream(outcome)
    body = body_of(where, question.prompt, len(question.answer), stream=True, **fields)
    try:
        async with asyncio.timeout(patience_s):
            async for event in _events(http, where, body, outcome):
                if not stream.take(event, monotonic_s()):
                    break
    except TimeoutError:
        outcome.kind = "left" if patience_s < HANG_S else "hang"
        outcome.detail = f"{len(stream.tokens)} tokens in {patience_s:g} s"
    except httpx.HTTPError as error:
        outcome.kind, outcome.detail = "cut", repr(error)
    else:
        if outcome.kind not in ("refused", "failed"):
            _judge(stream, question)
    if outcome.kind != "wrong" and stream.tokens != list(question.answer[: len(stream.tokens)]):
        outcome.kind, outcome.detail = "wrong", f"{len(stream.tokens)} tokens, then {outcome.kind}"
    outcome.ended_s = monotonic_s()
    return outcome


def _judge(stream: _Stream, question: Question) -> None:
    outcome = stream.outcome
    if not stream.is_whole:
        outcome.kind, outcome.detail = "cut", f"the stream ended after {len(stream.tokens)} tokens"
    elif tuple(stream.tokens) == question.answer:
        outcome.kind = "right"
    else:
        outcome.kind, outcome.detail = "wrong", f"{len(stream.tokens)} tokens"


async def _events(
    http: httpx.AsyncClient, where: Where, body: dict[str, Any], outcome: Outcome
) -> AsyncIterator[dict[str, Any]]:
    url, headers = f"{where.base_url}/v1/completions", {"authorization": f"Bearer {where.key}"}
    async with http.stream("POST", url, json=body, headers=headers, timeout=None) as response:
        if response.status_code != 200:
            outcome.kind = "refused"
            outcome.detail = f"{response.status_code} {(await response.aread()).decode()[:300]}"
            return
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def cold_questions(
    http: httpx.AsyncClient, where: Where, rng: random.Random, lengths: list[int], max_tokens: int
) -> list[Question]:
    """Of one session: each turn goes on with a part of the last one and its answer.

    With what a cold run answers; raises CommandError when it is refused.
    """
    found: list[Question] = []
    for length in lengths:
        said = (*found[-1].prompt, *found[-1].answer) if found else ()
        shared = said[: rng.randrange(length)]
        own = [rng.randrange(*TOKEN_IDS) for _ in range(length - len(shared))]
        prompt = (*shared, *own)
        response = await http.post(
            f"{where.base_url}/v1/completions",
            json=body_of(where, prompt, max_tokens, cache="off"),
            headers={"authorization": f"Bearer {where.key}"},
            timeout=HANG_S,
        )
        if response.status_code != 200:
            why = f"{response.status_code} {response.text[:300]}"
            raise CommandError(f"the cluster refuses a question before any fault: {why}")
        found.append(Question(prompt, tuple(response.json()["choices"][0]["token_ids"])))
    return found
