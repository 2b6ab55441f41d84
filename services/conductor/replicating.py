"""Copies of hot prefixes ahead of need: counts what placements miss, and acts when it leads.

Every conductor hears what the others saw missed, so any of them can take over. Sleeps while nothing
is missed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from services.conductor.heard import Heard
from services.conductor.replicas import ask_copy
from shared.kv.block_keys import num_keys
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.conductor import MissedPrefix, Misses, ReplicationState
from shared.messages.index import HoldersReply, HoldersRequest, Lead, LeadReply
from shared.messages.reports import NodeReport
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.events import PlaceAsked
from shared.scheduling.replica_targets import targets_of
from shared.scheduling.replication import (
    Copy,
    HotPrefix,
    Miss,
    Replication,
    ReplicationSettings,
    miss_of,
)
from shared.scheduling.vocabulary import PlacementDecision

TASK = "replication"
ROUND_S = 1.0
LEASE_S = 6.0
RENEW_BELOW_S = 3.0
ASK_TIMEOUT_S = 0.5
COPY_TIMEOUT_S = 30.0
MAX_RUNNING = 8
WEIGHED_A_ROUND = 16
MAX_UNSENT = 1_024
MAX_BATCH_BYTES = 512 << 10
"""Of keys, in what is told to the others once a round; what was missed least is left out."""


class Replicating:
    def __init__(
        self,
        conductor_id: str,
        bus: Bus,
        tasks: Tasks,
        core: ConductorCore,
        nodes: Heard[NodeReport],
        settings: ReplicationSettings,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._id = conductor_id
        self._bus = bus
        self._tasks = tasks
        self._core = core
        self._nodes = nodes
        self._clock = clock
        self._log = log
        self.table = Replication(settings)
        self._unsent: dict[tuple[bytes, bytes, int], Miss] = {}
        self._has_misses = asyncio.Event()
        self._leads_until_s = 0.0
        self._num_running = 0
        self._copies_total = self._failed_total = self._moved_bytes_total = 0
        self._last_error = ""

    # --- what is missed ------------------------------------------------------------------------
    def on_placed(self, asked: PlaceAsked, decision: PlacementDecision) -> None:
        cost = self._core.learnt(asked.request.model).cost
        miss = miss_of(asked.request, asked.matches, decision, cost)
        if miss is None:
            return
        self._observe(miss)
        key = (miss.root, miss.chain[-KEY_BYTES:], miss.had_blocks)
        known = self._unsent.get(key)
        if known is not None:
            mean_s = known.paid_s + (miss.paid_s - known.paid_s) / (known.count + 1)
            self._unsent[key] = replace(known, paid_s=mean_s, count=known.count + 1)
        elif len(self._unsent) < MAX_UNSENT:
            self._unsent[key] = miss

    def on_misses(self, misses: Misses) -> None:
        if misses.conductor == self._id:
            return
        for one in misses.prefixes:
            if len(one.chain) % KEY_BYTES == 0 and one.had_blocks < num_keys(one.chain):
                self._observe(miss_of_message(one))

    def _observe(self, miss: Miss) -> None:
        self.table.observe(miss, self._clock())
        self._has_misses.set()

    # --- acting --------------------------------------------------------------------------------
    async def run(self) -> None:
        """A task of the service."""
        while True:
            await self._has_misses.wait()
            await asyncio.sleep(ROUND_S)
            try:
                await self._tell()
                hot = self.table.candidates(self._clock(), WEIGHED_A_ROUND)
                if hot and await self._leads():
                    await self._round(hot)
            except ServiceError as error:
                self._log.debug("replication waits: %s", error)
            if not len(self.table) and not self._unsent:
                self._has_misses.clear()

    async def stop(self) -> None:
        """Another one may lead at once."""
        if self._clock() >= self._leads_until_s:
            return
        self._leads_until_s = 0.0
        try:
            await self._ask_lead(0)
        except ServiceError as error:
            self._log.debug("the lead of replication ends by itself: %s", error)

    async def _tell(self) -> None:
        waiting = sorted(self._unsent.values(), key=lambda one: -one.paid_s * one.count)
        self._unsent = {}
        batch: list[MissedPrefix] = []
        num_bytes = 0
        for one in waiting:
            num_bytes += len(one.chain) + 256
            if num_bytes > MAX_BATCH_BYTES:
                break
            batch.append(message_of(one))
        if batch:
            await self._bus.publish(
                subjects.CONDUCTOR_MISSES, Misses(conductor=self._id, prefixes=batch)
            )

    async def _leads(self) -> bool:
        """Ours is counted from before the question, so it ends here before it ends there."""
        now_s = self._clock()
        if self._leads_until_s - now_s < RENEW_BELOW_S:
            is_leader = await self._ask_lead(int(LEASE_S * 1_000))
            self._leads_until_s = now_s + LEASE_S if is_leader else 0.0
        return self._clock() < self._leads_until_s

    async def _ask_lead(self, lease_ms: int) -> bool:
        reply = await self._bus.request(
            subjects.INDEX_LEAD,
            Lead(task=TASK, holder=self._id, lease_ms=lease_ms),
            LeadReply,
            timeout_s=ASK_TIMEOUT_S,
        )
        return reply.is_leader

    async def _round(self, candidates: list[HotPrefix]) -> None:
        begun: list[HotPrefix] = []
        for hot in candidates:
            if self._num_running >= MAX_RUNNING:
                return
            if any(hot.is_start_of(one) or one.is_start_of(hot) for one in begun):
                continue
            copy = await self._plan(hot)
            if copy is not None:
                begun.append(hot)
                self.table.started(copy, self._clock())
                self._num_running += 1
                self._tasks.start_contained(self._copy(copy, hot.keys), name="replicate")

    async def _plan(self, hot: HotPrefix) -> Copy | None:
        root, key = hot.key
        found = await self._bus.request(
            subjects.INDEX_HOLDERS,
            HoldersRequest(root=root, key=key),
            HoldersReply,
            timeout_s=ASK_TIMEOUT_S,
        )
        now_s = self._clock()
        pools = {
            (node.id, node.incarnation): (node.slots_free, node.bytes_in_flight)
            for node in self._nodes.current(now_s)
            if node.root == root and node.state == "ready"
        }
        in_order = sorted(
            (holder.tier != "dram", pools[holder.node.id, holder.node.incarnation][1], n)
            for n, holder in enumerate(found.holders)
            if (holder.node.id, holder.node.incarnation) in pools
        )
        nodes = [found.holders[n].node for _, _, n in in_order]
        return self.table.plan(
            hot,
            [(node.id, node.incarnation) for node in nodes],
            targets_of(self._core.view, root, pools, self._core.settings.lease_s, now_s),
            self._core.learnt(hot.model).cost,
            now_s,
        )

    async def _copy(self, copy: Copy, keys: bytes) -> None:
        is_done = False
        try:
            reply = await ask_copy(self._bus, copy.target[0], copy.source, keys, COPY_TIMEOUT_S)
            self._moved_bytes_total += reply.moved_bytes
            is_done = reply.num_blocks >= num_keys(keys)
            if not is_done:
                self._last_error = (
                    f"{copy.target[0]}: {reply.num_blocks} of {num_keys(keys)} blocks came"
                )
        except ServiceError as error:
            self._last_error = f"{copy.target[0]}: {error.message}"
        finally:
            self._num_running -= 1
            self.table.finished(copy, self._clock(), is_done=is_done)
        if is_done:
            self._copies_total += 1
            self._log.info(
                "%d blocks of a hot prefix are on %s too: saves %.2f s, costs %.2f s",
                num_keys(keys), copy.target[0], copy.saving_s, copy.cost_s,
            )  # fmt: skip
        else:
            self._failed_total += 1

    def state(self) -> ReplicationState:
        return ReplicationState(
            is_on=True,
            is_leader=self._clock() < self._leads_until_s,
            num_prefixes=len(self.table),
            running=self._num_running,
            copies_total=self._copies_total,
            failed_total=self._failed_total,
            moved_bytes_total=self._moved_bytes_total,
            last_error=self._last_error,
        )


def miss_of_message(one: MissedPrefix) -> Miss:
    return Miss(
        one.model, one.root, one.chain, one.had_blocks, one.block_bytes, one.paid_s, one.count
    )


def message_of(miss: Miss) -> MissedPrefix:
    return MissedPrefix(
        model=miss.model,
        root=miss.root,
        chain=miss.chain,
        had_blocks=miss.had_blocks,
        block_bytes=miss.block_bytes,
        paid_s=miss.paid_s,
        count=round(miss.count),
    )
