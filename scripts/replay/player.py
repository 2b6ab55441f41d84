"""Sends planned requests at their time and notes when their tokens come. Judges nothing."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from scripts.replay.machine import MachineCheck
from scripts.replay.plan import PlannedRequest
from shared.runtime.clock import monotonic_s

TIMEOUT_S = 600.0
PROBE_S = 0.5


@dataclass(slots=True)
class Played:
    """One request as the client saw it."""

    planned: PlannedRequest
    lag_s: float = 0.0
    """Sent so much later than planned."""
    sent_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    status: int = 0
    error: str = ""
    bill: dict[str, Any] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        return self.status == 200 and not self.error and bool(self.token_times_s)


@dataclass(slots=True)
class Run:
    played: list[Played]
    span_s: float = 0.0
    machine: MachineCheck = field(default_factory=MachineCheck)
    """Without a look unless the player watches it."""
    loop_lags_s: list[float] = field(default_factory=list)
    """How late the client's own timer fired: above some milliseconds it is the bottleneck."""


class Chooser(Protocol):
    def begin(self, planned: PlannedRequest) -> dict[str, str]: ...

    def end(self, planned: PlannedRequest, placement: Mapping[str, str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Player:
    base_url: str
    model: str
    admin_key: str = ""
    placement: dict[str, str] | None = None
    """Instances, which the admin key allows."""
    policy: str | None = None
    """So too."""
    max_connections: int = 1_024
    chooser: Chooser | None = None
    """Chooses `placement` for each request."""
    watches_machine: bool = False
    """Some seconds more before and after."""

    async def play(
        self, requests: Sequence[PlannedRequest], on_done: Callable[[], None] = lambda: None
    ) -> Run:
        limits = httpx.Limits(max_connections=self.max_connections)
        run = Run([Played(planned) for planned in requests])
        if self.watches_machine:
            await asyncio.to_thread(run.machine.look_idle, run.machine.before_s)
        async with (
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S, limits=limits) as http,
            asyncio.TaskGroup() as probing,
        ):
            start_s = monotonic_s()  # making a client takes a third of a second
            probe = probing.create_task(_probe(run.loop_lags_s))
            watch = probing.create_task(run.machine.watch()) if self.watches_machine else None
            async with asyncio.TaskGroup() as group:
                for played in run.played:
                    await asyncio.sleep(max(0.0, start_s + played.planned.at_s - monotonic_s()))
                    group.create_task(self._send(http, played, start_s, on_done))
            probe.cancel()
            if watch is not None:
                watch.cancel()
        run.span_s = monotonic_s() - start_s
        if self.watches_machine:
            await asyncio.to_thread(run.machine.look_idle, run.machine.after_s)
        return run

    async def _send(
        self, http: httpx.AsyncClient, played: Played, start_s: float, on_done: Callable[[], None]
    ) -> None:
        planned = played.planned
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": await asyncio.to_thread(planned.prompt),
            "max_tokens": planned.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        placement = self.placement if self.chooser is None else self.chooser.begin(planned)
        if placement is not None:
            body["placement"] = placement
        if self.policy is not None:
            body["policy"] = self.policy
        content = await asyncio.to_thread(json.dumps, body)
        headers = {
            "content-type": "application/json",
            "x-moonpool-bill": "1",
            **key_headers(self.admin_key),
        }
        played.sent_s = monotonic_s()
        played.lag_s = played.sent_s - start_s - planned.at_s
        url = f"{self.base_url}/v1/completions"
        try:
            async with http.stream("POST", url, content=content, headers=headers) as response:
                played.status = response.status_code
                if response.status_code != 200:
                    played.error = _error_of(await response.aread())
                else:
                    async for line in response.aiter_lines():
                        _note(played, line)
        except (httpx.HTTPError, ValueError) as error:
            played.error = f"{type(error).__name__}: {error}"
        finally:
            if self.chooser is not None and placement is not None:
                self.chooser.end(planned, placement)
        on_done()


def key_headers(key: str) -> dict[str, str]:
    """Without a key no header at all: an empty one is none that HTTP allows."""
    return {"authorization": f"Bearer {key}"} if key else {}


async def _probe(lags_s: list[float]) -> None:
    while True:
        asked_s = monotonic_s()
        await asyncio.sleep(PROBE_S)
        lags_s.append(monotonic_s() - asked_s - PROBE_S)


def _note(played: Played, line: str) -> None:
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        played.error = str(event["error"].get("message", event["error"]))
        return
    now_s = monotonic_s()
    for choice in event.get("choices", ()):
        played.token_times_s += [now_s] * len(choice.get("token_ids") or ())
    if "moonpool" in event:
        played.bill = event["moonpool"]


def _error_of(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode(errors="replace")
