"""Redis, the truth that survives: the only file that speaks to it. Layout: segments.py.

Every call is bounded. While Redis is away calls fail at once with StoreAway; `probe` finds out
when it is back.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from services.cache_index import redis_scripts
from services.cache_index.segments import (
    NUMBER_BYTES,
    SEGMENT_PATTERN,
    TIER_DRAM,
    SegmentChange,
    pack_replica,
)

T = TypeVar("T")
TIMEOUT_S = 1.0
SCAN_COUNT = 128
_TAG = "mp:{nodes}"
EPOCH = f"{_TAG}:epoch"
COUNTER = f"{_TAG}:counter"
NAMES = f"{_TAG}:names"
VOIDED = f"{_TAG}:voided"
COLLECTED = f"{_TAG}:collected"
COLLECTOR = f"{_TAG}:collector"
FORMATS = "mp:{formats}"


class StoreAway(Exception):
    """Redis cannot be reached or does not answer in time."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What Redis says of a node. Its replicas are under `number`, and true at `seq`."""

    node: str
    incarnation: str
    root: bytes
    registration: int
    number: int
    seq: int
    is_complete: bool


class RedisStore:
    def __init__(
        self, url: str, log: logging.Logger, options: Mapping[str, Any] | None = None
    ) -> None:
        self._client = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            **(options or {}),
        )
        self._log = log
        self._shas = {
            script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
            for script in redis_scripts.ALL
        }
        self.is_up = False
        self.epoch = ""
        """Random; another one means that Redis lost what it had."""

    async def close(self) -> None:
        await self._client.aclose()

    async def probe(self) -> str:
        """The index epoch, made anew in an empty Redis. Raises StoreAway."""
        fresh = secrets.token_hex(8)
        # Far from the numbers of a lost epoch, so that a late writer of it hits nobody's.
        first_number = secrets.randbelow(1 << 31)
        self.is_up = True
        epoch = await self._run(redis_scripts.BEGIN_EPOCH, [EPOCH, COUNTER], [fresh, first_number])
        self.epoch = str(epoch.decode())
        return self.epoch

    # --- nodes ---------------------------------------------------------------------------------
    async def register(self, node: str, incarnation: str, root: bytes) -> int | None:
        """The registration's number; None: the incarnation is void, another one took the name."""
        is_current, number = await self._run(
            redis_scripts.REGISTER,
            [_record(node), COUNTER, NAMES, VOIDED],
            [node, incarnation, root.hex()],
        )
        return int(number) if is_current else None

    async def node(self, node: str) -> NodeRecord | None:
        fields = await self._guard(lambda: self._client.hgetall(_record(node)))
        return _node_record(node, fields)

    async def nodes(self) -> list[NodeRecord]:
        names = await self._guard(lambda: self._client.smembers(NAMES))
        records = [await self.node(name.decode()) for name in sorted(names)]
        return [record for record in records if record is not None]

    async def retire(self, node: str, incarnation: str, registration: int) -> None:
        """Forget a node that is gone; its number is void then."""
        await self._run(
            redis_scripts.RETIRE,
            [_record(node), NAMES, VOIDED, _writer(node)],
            [node, incarnation, registration],
        )

    # --- the writer of a node ------------------------------------------------------------------
    async def hold_writers(self, nodes: Sequence[str], writer: str, lease_ms: int) -> set[str]:
        """Take or renew the writer lease of these nodes where it is free or ours."""
        if not nodes:
            return set()
        held = await self._run(
            redis_scripts.HOLD_WRITERS, [_writer(node) for node in nodes], [writer, lease_ms]
        )
        return {node for node, is_held in zip(nodes, held, strict=True) if is_held}

    async def release_writers(self, nodes: Sequence[str], writer: str) -> None:
        if nodes:
            keys = [_writer(node) for node in nodes]
            await self._run(redis_scripts.RELEASE_WRITERS, keys, [writer])

    async def open_session(self, node: str, incarnation: str, writer: str) -> int | None:
        """A new number for what this writer writes of the node; all before is void."""
        number = await self._run(
            redis_scripts.OPEN_SESSION,
            [_record(node), COUNTER, _writer(node), VOIDED],
            [writer, incarnation],
        )
        return int(number) or None

    async def write(self, number: int, changes: Mapping[bytes, SegmentChange]) -> None:
        """Removals, then stores, of many segments in one round trip."""
        calls: list[tuple[str, bytes, list[bytes]]] = []
        for segment, change in changes.items():
            if change.removed:
                void = number.to_bytes(NUMBER_BYTES, "big")
                calls.append((redis_scripts.REMOVE, segment, [void, *change.removed]))
            if change.stored:
                replica = pack_replica(number, TIER_DRAM)
                calls.append((redis_scripts.STORE, segment, [replica, *change.stored]))
        await self._run_many(calls)

    async def commit(self, node: str, number: int, seq: int) -> bool:
        """All up to `seq` is written; False: the session is void."""
        return bool(await self._run(redis_scripts.COMMIT, [_record(node)], [number, seq]))

    # --- reading and collecting ----------------------------------------------------------------
    async def segments(self) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        """All segments in pages of (key, fields); a large segment comes in pieces."""
        cursor = 0

        async def scan() -> tuple[int, list[bytes]]:
            found: Any = await self._client.scan(cursor, match=SEGMENT_PATTERN, count=SCAN_COUNT)
            return int(found[0]), list(found[1])

        while True:
            cursor, keys = await self._guard(scan)
            async for page in self._pieces(keys):
                yield page
            if not cursor:
                return

    async def _pieces(
        self, keys: list[bytes]
    ) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        cursors = dict.fromkeys(keys, 0)
        while cursors:
            pipeline = self._client.pipeline(transaction=False)
            for key, cursor in cursors.items():
                pipeline.hscan(key, cursor, count=1_024)
            answers = await self._guard(pipeline.execute)
            page = list(zip(cursors, (fields for _, fields in answers), strict=True))
            cursors = {
                key: following
                for key, (following, _) in zip(cursors, answers, strict=True)
                if following
            }
            yield page

    async def collection_due(self) -> tuple[int, int]:
        """(numbers voided so far, of these seen by the last whole collection)."""
        voided, collected = await self._guard(lambda: self._client.mget(VOIDED, COLLECTED))
        return int(voided or 0), int(collected or 0)

    async def last_number(self) -> int:
        return int(await self._guard(lambda: self._client.get(COUNTER)) or 0)

    async def hold_collector(self, holder: str, lease_ms: int) -> bool:
        held = await self._run(redis_scripts.HOLD_WRITERS, [COLLECTOR], [holder, lease_ms])
        return bool(held[0])

    async def collect(self, void: Mapping[bytes, tuple[set[int], list[bytes]]]) -> None:
        """By segment: drop these numbers from these fields."""
        await self._run_many(
            [
                (
                    redis_scripts.REMOVE,
                    segment,
                    [b"".join(n.to_bytes(NUMBER_BYTES, "big") for n in sorted(numbers)), *fields],
                )
                for segment, (numbers, fields) in void.items()
            ]
        )

    async def set_collected(self, voided: int) -> None:
        await self._guard(lambda: self._client.set(COLLECTED, voided))

    # --- formats -------------------------------------------------------------------------------
    async def claim_format(self, model: str, kv_format: dict[str, Any]) -> dict[str, Any]:
        """The model's format: this one when there was none. Atomic among all claimants."""
        mine = json.dumps(kv_format, sort_keys=True)
        if await self._guard(lambda: self._client.hsetnx(FORMATS, model, mine)):
            return kv_format
        current = await self._guard(lambda: self._client.hget(FORMATS, model))
        if current is None:  # an operator took it away in between
            return await self.claim_format(model, kv_format)
        parsed: dict[str, Any] = json.loads(current)
        return parsed

    # --- calls ---------------------------------------------------------------------------------
    async def _run(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        sha = self._shas[script]

        async def call() -> Any:
            return await self._client.evalsha(sha, len(keys), *keys, *arguments)

        return await self._guard(lambda: self._with_scripts(call))

    async def _run_many(self, calls: Sequence[tuple[str, bytes, list[bytes]]]) -> None:
        if not calls:
            return

        async def call() -> Any:
            pipeline = self._client.pipeline(transaction=False)
            for script, segment, arguments in calls:
                pipeline.evalsha(self._shas[script], 1, segment, *arguments)
            return await pipeline.execute()

        await self._guard(lambda: self._with_scripts(call))

    async def _with_scripts(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except NoScriptError:  # a Redis that was started anew; every script is idempotent
            for script in redis_scripts.ALL:
                await self._client.script_load(script)
            return await call()

    async def _guard(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if not self.is_up:
            raise StoreAway("Redis is away")
        try:
            return await call()
        except (RedisError, OSError, TimeoutError) as error:
            self.is_up = False
            raise StoreAway(f"{type(error).__name__}: {error}") from error


def _record(node: str) -> str:
    return f"{_TAG}:node:{node}"


def _writer(node: str) -> str:
    return f"{_TAG}:writer:{node}"


def _node_record(node: str, fields: dict[bytes, bytes]) -> NodeRecord | None:
    if not fields:
        return None
    return NodeRecord(
        node=node,
        incarnation=fields[b"incarnation"].decode(),
        root=bytes.fromhex(fields[b"root"].decode()),
        registration=int(fields[b"registration"]),
        number=int(fields[b"number"]),
        seq=int(fields[b"seq"]),
        is_complete=fields[b"is_complete"] == b"1",
    )
