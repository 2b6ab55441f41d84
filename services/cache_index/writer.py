"""Writes residency to Redis for the nodes whose writer lease this process holds.

A session (one number) starts with a whole rewrite from the node's inventory; events follow it,
merged: of each block only the last word is written. When the session turns out void, or what waits
for Redis becomes too much, the node is asked for its inventory again; nothing ever waits for Redis.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.cache_index.mirror import Mirror
from services.cache_index.pending import PendingChanges
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.segments import SegmentChange, changes_of_run
from shared.messages.index import ResidencyEvent, StoredRun

WRITER_LEASE_MS = 5_000
MAX_PENDING_FIELDS = 200_000
MERGE_FIELDS = 4_096


@dataclass(slots=True)
class _Session:
    """One node as its writer sees it; `number` is None until Redis gave one."""

    incarnation: str
    registration: int
    root: bytes
    rewrite: deque[StoredRun]
    rewrite_seq: int | None
    """None: all of it is written."""
    pending: PendingChanges = field(default_factory=PendingChanges)
    writing: PendingChanges = field(default_factory=PendingChanges)
    """What was pending when writing began; it is whole before it is committed."""
    number: int | None = None

    @property
    def num_pending(self) -> int:
        return self.pending.num_fields + self.writing.num_fields


class IndexWriter:
    def __init__(
        self,
        store: RedisStore,
        mirror: Mirror,
        want_inventory: Callable[[str], None],
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._want_inventory = want_inventory
        self._log = log
        self._id = secrets.token_hex(8)
        self._mine: set[str] = set()
        self.sessions: dict[str, _Session] = {}
        self._has_work = asyncio.Event()
        self._horizon = store.horizon

    def writes(self, node: str) -> bool:
        return node in self._mine

    @property
    def num_pending(self) -> int:
        return sum(session.num_pending for session in self.sessions.values())

    async def hold_leases(self, now_s: float) -> None:
        """Renew our leases and take those that are free. Raises StoreAway."""
        entries = {entry.lease.node: entry for entry in self._mirror.registry.live(now_s)}
        held = await self._store.hold_writers(sorted(entries), self._id, WRITER_LEASE_MS)
        if self._store.horizon > self._horizon:
            self.sessions.clear()  # Redis has room again for what was left out
        self._horizon = self._store.horizon
        for node in self._mine - held:
            self.sessions.pop(node, None)
        self._mine = held
        for node in sorted(held):
            session = self.sessions.get(node)
            lease = entries[node].lease
            if session is None or (session.incarnation, session.registration) != (
                lease.incarnation,
                lease.registration,
            ):
                self.sessions.pop(node, None)
                self._want_inventory(node)

    async def release_leases(self) -> None:
        try:
            await self._store.release_writers(sorted(self._mine), self._id)
        except StoreAway:
            self._log.info("writer leases are left to end by themselves: Redis is away")
        self._mine.clear()

    def forget_all(self) -> None:
        """Redis lost what it had: every session is void."""
        self.sessions.clear()
        self._mine.clear()

    def rewrite(
        self,
        node: str,
        runs: Iterable[StoredRun],
        seq: int,
        events: Iterable[ResidencyEvent],
    ) -> None:
        """Start a session with all that the node held at `seq`, then `events`."""
        entry = self._mirror.registry.get(node)
        if entry is None or node not in self._mine:
            return
        lease = entry.lease
        self.sessions[node] = _Session(
            lease.incarnation, lease.registration, lease.root, deque(runs), seq
        )
        for event in events:
            self.add(node, event)
        self._has_work.set()

    def add(self, node: str, event: ResidencyEvent) -> None:
        """Keep one event that the mirror applied in order."""
        session = self.sessions.get(node)
        if session is None or session.incarnation != event.incarnation:
            return
        session.pending.add(event)
        if session.num_pending > MAX_PENDING_FIELDS:
            # Redis is away or too slow: the inventory will say it in less.
            del self.sessions[node]
        self._has_work.set()

    async def run(self) -> None:
        """Writes what is pending; a task of the service."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            for node in list(self.sessions):
                try:
                    await self._write_node(node)
                except StoreAway:
                    break  # `wake` comes when Redis is back

    def wake(self) -> None:
        self._has_work.set()

    async def _write_node(self, node: str) -> None:
        session = self.sessions.get(node)
        if session is None or not await self._open(node, session):
            return
        number = session.number
        assert number is not None
        while session.rewrite_seq is not None and self._is_current(node, session):
            runs = _take(session.rewrite)
            changes = [each for run in runs for each in changes_of_run(session.root, run)]
            try:
                await self._store.write(number, changes)
            except StoreAway:
                session.rewrite.extendleft(reversed(runs))
                raise
            if not session.rewrite:
                if not await self._commit(node, session, session.rewrite_seq):
                    return
                session.rewrite_seq = None
        while (session.writing or session.pending) and self._is_current(node, session):
            if not session.writing:
                session.writing, session.pending = session.pending, PendingChanges()
            await self._write_pending(number, session.writing)
            if not session.writing and not await self._commit(node, session, session.writing.seq):
                return

    async def _write_pending(self, number: int, writing: PendingChanges) -> None:
        changes: list[SegmentChange] = writing.take(MERGE_FIELDS)
        try:
            await self._store.write(number, changes)
        except StoreAway:
            writing.put_back(changes)
            raise

    async def _open(self, node: str, session: _Session) -> bool:
        """A number for the session; False: it is void."""
        if session.number is None:
            session.number = await self._store.open_session(node, session.incarnation, self._id)
        if session.number is not None:
            return True
        self._end(node, session)
        if await self._store.node(node) is None:
            # Taken for gone while it lives, by one that was cut off from it. When it is
            # not known here either, its next renewal makes it register again.
            self._mirror.forget_node(node)
        return False

    async def _commit(self, node: str, session: _Session, seq: int) -> bool:
        assert session.number is not None
        if await self._store.commit(node, session.number, seq):
            return True
        self._end(node, session)
        return False

    def _is_current(self, node: str, session: _Session) -> bool:
        return self.sessions.get(node) is session

    def _end(self, node: str, session: _Session) -> None:
        """The session is void: another writer, or another registration of the node."""
        if self._is_current(node, session):
            del self.sessions[node]
            self._mine.discard(node)  # the next round of leases says whose it is


def _take(runs: deque[StoredRun]) -> list[StoredRun]:
    """The next runs, about MERGE_FIELDS blocks together."""
    taken: list[StoredRun] = []
    num_bytes = 0
    while runs and num_bytes < 16 * MERGE_FIELDS:
        taken.append(runs.popleft())
        num_bytes += len(taken[-1].keys)
    return taken
