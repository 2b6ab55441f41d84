"""Redis, the truth that survives: what is asked of it. Its layout is in segments.py."""

import json
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.cache_index import redis_scripts
from services.cache_index.redis_connection import RedisConnection
from services.cache_index.segments import (
    SEGMENT_PATTERN,
    SegmentChange,
    meta_key,
    number_bytes,
    within_horizon,
)
from shared.kv.fingerprints import NUM_CLASSES

SCAN_KEYS = 256
_TAG = "mp:{nodes}"
EPOCH = f"{_TAG}:epoch"
COUNTER = f"{_TAG}:counter"
NAMES = f"{_TAG}:names"
VOIDED = f"{_TAG}:voided"
COLLECTED = f"{_TAG}:collected"
COLLECTOR = f"{_TAG}:collector"
HORIZON = f"{_TAG}:horizon"
FORMATS = "mp:{formats}"


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
        self,
        url: str,
        *,
        is_cluster: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.connection = RedisConnection(url, is_cluster=is_cluster, options=options)
        self.epoch = ""
        """Random; another one means that Redis lost what it had."""
        self.horizon = NUM_CLASSES
        """Blocks of this depth class and beyond are not kept in Redis."""

    @property
    def is_up(self) -> bool:
        return self.connection.is_up

    async def close(self) -> None:
        await self.connection.close()

    async def probe(self) -> str:
        """The index epoch, made anew in an empty Redis. Raises StoreAway."""
        fresh = secrets.token_hex(8)
        # Far from the numbers of a lost epoch, so that a late writer of it hits nobody's.
        first_number = secrets.randbelow(1 << 31)
        self.connection.is_up = True
        epoch, horizon = await self._run(
            redis_scripts.BEGIN_EPOCH, [EPOCH, COUNTER, HORIZON], [fresh, first_number]
        )
        self.epoch = str(epoch.decode())
        self.horizon = int(horizon or NUM_CLASSES)
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
        return _node_record(node, await self._call("HGETALL", _record(node)))

    async def nodes(self) -> list[NodeRecord]:
        names = await self._call("SMEMBERS", NAMES)
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

    async def write(self, number: int, changes: Iterable[SegmentChange]) -> None:
        """Removals, then stores, of many segments in few round trips."""
        replica = number_bytes(number)
        calls = []
        for change in changes:
            kept = within_horizon(change, self.horizon)
            keys = [kept.segment, meta_key(kept.segment)]
            calls.append(
                (redis_scripts.CHANGE, keys, [replica, kept.removed, kept.stored, kept.marks])
            )
        await self.connection.run_many(calls)

    async def commit(self, node: str, number: int, seq: int) -> bool:
        """All up to `seq` is written; False: the session is void."""
        return bool(await self._run(redis_scripts.COMMIT, [_record(node)], [number, seq]))

    # --- reading and collecting ----------------------------------------------------------------
    def segments(
        self, keys_at_once: int = SCAN_KEYS
    ) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        """All there is, in pages of (key, fields)."""
        return self.connection.pages(SEGMENT_PATTERN, keys_at_once)

    async def num_hashes(self) -> int:
        """About: what else lies in this Redis is counted too."""
        return await self.connection.num_keys()

    async def collection_due(self) -> tuple[int, int]:
        """(numbers voided so far, of these seen by the last whole collection)."""
        voided, collected = await self._call("MGET", VOIDED, COLLECTED)
        return int(voided or 0), int(collected or 0)

    async def last_number(self) -> int:
        return int(await self._call("GET", COUNTER) or 0)

    async def hold_collector(self, holder: str, lease_ms: int) -> bool:
        held = await self._run(redis_scripts.HOLD_WRITERS, [COLLECTOR], [holder, lease_ms])
        return bool(held[0])

    async def hold_lead(self, task: str, holder: str, lease_ms: int) -> bool:
        """Be the one that does this task for all; False: another one is."""
        if lease_ms <= 0:
            await self._run(redis_scripts.RELEASE_WRITERS, [_leader(task)], [holder])
            return False
        held = await self._run(redis_scripts.HOLD_WRITERS, [_leader(task)], [holder, lease_ms])
        return bool(held[0])

    async def collect(self, void: Mapping[bytes, tuple[set[int], bytes]]) -> None:
        """By segment: drop these numbers from these (packed) fields."""
        await self.connection.run_many(
            [
                (
                    redis_scripts.DROP,
                    [segment, meta_key(segment)],
                    [b"".join(number_bytes(number) for number in sorted(numbers)), fields],
                )
                for segment, (numbers, fields) in void.items()
            ]
        )

    async def set_collected(self, voided: int) -> None:
        await self._call("SET", COLLECTED, voided)

    async def memory_bytes(self) -> int:
        return await self.connection.memory_bytes()

    async def set_horizon(self, horizon: int) -> None:
        """For all who write; NUM_CLASSES: none."""
        if horizon >= NUM_CLASSES:
            await self._call("DEL", HORIZON)
        else:
            await self._call("SET", HORIZON, horizon)
        self.horizon = horizon

    # --- formats -------------------------------------------------------------------------------
    async def claim_format(self, model: str, kv_format: dict[str, Any]) -> dict[str, Any]:
        """The model's format: this one when there was none. Atomic among all claimants."""
        mine = json.dumps(kv_format, sort_keys=True)
        if await self._call("HSETNX", FORMATS, model, mine):
            return kv_format
        current = await self._call("HGET", FORMATS, model)
        if current is None:  # an operator took it away in between
            return await self.claim_format(model, kv_format)
        parsed: dict[str, Any] = json.loads(current)
        return parsed

    async def _call(self, *command: Any) -> Any:
        return await self.connection.call(*command)

    async def _run(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        return await self.connection.run(script, keys, arguments)


def _record(node: str) -> str:
    return f"{_TAG}:node:{node}"


def _writer(node: str) -> str:
    return f"{_TAG}:writer:{node}"


def _leader(task: str) -> str:
    return f"{_TAG}:leader:{task}"


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
