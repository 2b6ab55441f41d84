"""The outputs of docs/nats.md: asked of, and listened to on, a small cluster that serves."""

import asyncio
import base64
import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from scripts.docs.entries import Entry
from scripts.docs.nats_page import MICRO, example_subject
from scripts.docs.sample import Sample
from scripts.docs.shorten import shorten
from scripts.docs.subject_list import ENTRIES
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.readiness import ask_conductor
from shared.kv.block_keys import chain_keys
from shared.messages import subjects
from shared.messages.access import covers
from shared.messages.conductor import StateReply
from shared.messages.envelope import Message, MessageError, decode
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s

WIDTH = 100
REQUEST = "example-1"
NUM_TOKENS = 1_100
LISTEN_S = 90.0
MAX_TRACE_LINES = 6


@dataclass(frozen=True, slots=True)
class Heard:
    subject: str
    data: bytes
    reply: str


class Tap:
    """Everything on the bus, as the operator may hear it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard: list[Heard] = []
        self._answers: dict[str, bytes] = {}

    async def start(self) -> None:
        async def on_message(msg: Any) -> None:
            if msg.subject.startswith("_INBOX."):
                self._answers.setdefault(msg.subject, msg.data)
            else:
                self._heard.append(Heard(msg.subject, msg.data, msg.reply))

        for subject in (f"{subjects.PREFIX}.>", "_INBOX.>"):
            await self._bus.client.subscribe(subject, cb=on_message)
        await self._bus.flush()

    def shown(self, entry: Entry) -> str | None:
        """A message of it that says something, and its answer; None: there was none yet."""
        pattern = re.sub(r"<[^>]+>", "*", entry.subjects[0])
        found = [one for one in self._heard if covers(pattern, one.subject)]
        if entry.reply is not None:
            found = [one for one in found if one.reply in self._answers]
        if not found:
            return None
        if pattern == subjects.trace("*"):
            lines = [_line(one, entry.message) for one in found[:MAX_TRACE_LINES]]
            return _command("sub", pattern) + "".join(lines)
        best = max(found, key=lambda one: len(one.data))
        text = _command("sub", pattern) + _line(best, entry.message)
        if entry.reply is not None:
            text += "its answer:\n" + _pretty(_decoded(self._answers[best.reply], entry.reply))
        return text


async def collect(cluster: LocalCluster, http: httpx.AsyncClient) -> dict[str, str]:
    """By the first subject of each entry, "error" and those of MICRO."""
    bus = cluster.bus
    tap = Tap(bus)
    await tap.start()
    # What is only said at a start.
    await cluster.restart("node-2")
    await cluster.restart("decode-2")
    await cluster.wait_ready()
    sample = await serve(cluster, http)
    outputs = {"error": await _ask_raw(bus, subjects.CONDUCTOR_CHANGE_REPLICA, {"model": 5})}
    for entry in ENTRIES:
        if entry.ask is not None:
            outputs[entry.subjects[0]] = await _ask(bus, entry, sample)
    for subject in MICRO:
        answer = await bus.client.request(subject, b"", timeout=5)
        outputs[subject] = _pretty(json.loads(answer.data))
    heard = [entry for entry in ENTRIES if entry.ask is None]
    deadline_s = monotonic_s() + LISTEN_S
    seeds = itertools.count(1)
    while missing := [one for one in heard if tap.shown(one) is None]:
        if monotonic_s() > deadline_s:
            names = ", ".join(one.subjects[0] for one in missing)
            raise TimeoutError(f"nobody sent anything on {names}")
        await serve(cluster, http, seed=next(seeds))
        await asyncio.sleep(0.5)
    return outputs | {one.subjects[0]: tap.shown(one) or "" for one in heard}


async def serve(cluster: LocalCluster, http: httpx.AsyncClient, seed: int = 0) -> Sample:
    """Requests that hit locally and remotely, and one with decode on the other node."""
    tokens = np.random.default_rng(seed).integers(3, 500, NUM_TOKENS).astype(np.int32)
    runs = ((tokens[::-1], 1, 2), (tokens, 1, 1), (tokens, 1, 1), (tokens, 2, 2))
    for number, (prompt, prefill, decode_) in enumerate(runs, start=1):
        body = {
            "model": cluster.options.model,
            "prompt": prompt.tolist(),
            "max_tokens": 4,
            "placement": {"prefill": f"prefill-{prefill}", "decode": f"decode-{decode_}"},
        }
        if number == len(runs):
            body["tbt_slo_ms"] = 60_000
        headers = {
            "authorization": f"Bearer {cluster.admin_key}",
            "x-request-id": f"example-{number}",
            "x-moonpool-trace": "1",
        }
        url = f"{cluster.base_url}/v1/completions"
        answer = await http.post(url, json=body, headers=headers, timeout=60)
        answer.raise_for_status()
    return await _sample(cluster, tokens)


async def _sample(cluster: LocalCluster, tokens: np.ndarray[Any, Any]) -> Sample:
    state = await ask_conductor(cluster.bus)
    assert state is not None, "a conductor answers: requests were placed"
    model = state.models[0]
    chain = chain_keys(model.root, tokens.tobytes(), model.block_tokens)
    incarnations = _incarnations(state)
    return Sample(
        model=model.name,
        root=_base64(model.root),
        chain=_base64(chain),
        key=_base64(chain[:16]),
        last_key=_base64(chain[-16:]),
        num_tokens=len(tokens),
        request_id=REQUEST,
        node="node-1",
        node_incarnation=incarnations["node-1"],
        other_node="node-2",
        other_incarnation=incarnations["node-2"],
    )


def _incarnations(state: StateReply) -> dict[str, str]:
    return {node.id: node.incarnation for node in state.nodes}


async def _ask(bus: Bus, entry: Entry, sample: Sample) -> str:
    assert entry.ask is not None, "only those with an example are asked"
    return await _ask_raw(bus, example_subject(entry), entry.ask(sample))


async def _ask_raw(bus: Bus, subject: str, question: dict[str, Any]) -> str:
    """The command and its answer, which must be JSON."""
    answer = await bus.client.request(subject, json.dumps(question).encode(), timeout=10)
    return _command("req", subject, json.dumps(shorten(question))) + _pretty(
        json.loads(answer.data)
    )


def _command(verb: str, subject: str, payload: str = "") -> str:
    quoted = f"'{subject}'" if "*" in subject else subject
    return f"$ nats {verb} {quoted}" + (f" '{payload}'" if payload else "") + "\n"


def _line(one: Heard, message_type: type[Message]) -> str:
    return f"[{one.subject}]\n" + _pretty(_decoded(one.data, message_type))


def _decoded(data: bytes, message_type: type[Message]) -> Any:
    try:
        return json.loads(decode(data, message_type).model_dump_json())
    except MessageError as error:
        return {"no such message": str(error)}


def _pretty(value: Any) -> str:
    """JSON: what fits in a line is in one."""
    return _laid_out(shorten(value), 0) + "\n"


def _laid_out(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + 2 * depth <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    indent = "  " * (depth + 1)
    if isinstance(value, dict):
        lines = [f"{indent}{json.dumps(k)}: {_laid_out(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
    lines = [f"{indent}{_laid_out(one, depth + 1)}" for one in value]
    return "[\n" + ",\n".join(lines) + "\n" + "  " * depth + "]"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
