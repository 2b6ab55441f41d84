"""Writes residency to Redis for the nodes whose writer lease this process holds.

Each node has a bounded queue. A session (one number) starts with a whole rewrite from the node's
inventory; events follow it. When the session turns out void, or Redis was away for so long that the
queue ran over, the node is asked for its inventory again; nothing ever waits for Redis.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.cache_index.mirror import Mirror
from services.cache_index.redis_store import RedisStore, StoreAway
from services.cache_index.segments import Batch, changes_of_event, changes_of_runs
from shared.messages.index import ResidencyEvent, StoredRun

WRITER_LEASE_MS = 5_000
MAX_QUEUED_FIELDS = 200_000
MERGE_FIELDS = 4_096


@dataclass(slots=True)
class _Session:
    """One node as its writer sees it; `number` is None until Redis gave one."""

    incarnation: str
    registration: int
    rewrite: deque[Batch]
    queue: deque[Batch] = field(default_factory=deque)
    number: int | None = None
    num_queued_fields: int = 0


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

    def writes(self, node: str) -> bool:
        return node in self._mine

    async def hold_leases(self, now_s: float) -> None:
        """Renew our leases and take those that are free. Raises StoreAway."""
        entries = {entry.lease.node: entry for entry in self._mirror.registry.live(now_s)}
        held = await self._store.hold_writers(sorted(entries), self._id, WRITER_LEASE_MS)
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
        batches = deque(changes_of_runs(lease.root, runs, seq))
        self.sessions[node] = _Session(lease.incarnation, lease.registration, batches)
        for event in events:
            self.add(node, event)
        self._has_work.set()

    def add(self, node: str, event: ResidencyEvent) -> None:
        """Queue one event that the mirror applied in order."""
        session = self.sessions.get(node)
        if session is None or session.incarnation != event.incarnation:
            return
        batch = changes_of_event(event)
        session.queue.append(batch)
        session.num_queued_fields += batch.num_fields
        if session.num_queued_fields > MAX_QUEUED_FIELDS:
            # Redis is away or too slow: the inventory will say it in less.
            del self.sessions[node]
        self._has_work.set()

    async def run(self) -> None:
        """Writes what is queued; a task of the service."""
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
        if session is None:
            return
        if session.number is None:
            session.number = await self._store.open_session(node, session.incarnation, self._id)
            if session.number is None:
                self._end(node, session)
                if await self._store.node(node) is None:
                    # Taken for gone while it lives, by one that was cut off from it. When it is
                    # not known here either, its next renewal makes it register again.
                    self._mirror.forget_node(node)
                return
        while session.rewrite:
            batch = session.rewrite[0]
            await self._store.write(session.number, batch.changes)
            session.rewrite.popleft()
            if not session.rewrite and not await self._commit(node, session, batch.seq):
                return
        while session.queue and self.sessions.get(node) is session:
            batches = _take(session.queue)
            for batch in batches:
                await self._store.write(session.number, batch.changes)
            for batch in batches:
                session.queue.popleft()
                session.num_queued_fields -= batch.num_fields
            if not await self._commit(node, session, batches[-1].seq):
                return

    async def _commit(self, node: str, session: _Session, seq: int) -> bool:
        assert session.number is not None
        if await self._store.commit(node, session.number, seq):
            return True
        self._end(node, session)
        return False

    def _end(self, node: str, session: _Session) -> None:
        """The session is void: another writer, or another registration of the node."""
        if self.sessions.get(node) is session:
            del self.sessions[node]
            self._mine.discard(node)  # the next round of leases says whose it is


def _take(queue: deque[Batch]) -> list[Batch]:
    """The next batches, about MERGE_FIELDS together, at least one."""
    batches: list[Batch] = []
    num_fields = 0
    for batch in queue:
        batches.append(batch)
        num_fields += batch.num_fields
        if num_fields >= MERGE_FIELDS:
            break
    return batches
