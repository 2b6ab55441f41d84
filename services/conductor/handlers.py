"""Messages in, core calls, replies out."""

import asyncio
from collections.abc import Callable
from typing import Any

from services.conductor import convert
from services.conductor.driver import Driver
from services.conductor.heard import Heard, models_of
from services.conductor.journal_file import JournalFile
from services.conductor.readings import Decisions
from services.conductor.replicas import Replicas
from services.conductor.replicating import Replicating
from shared.decisions.refusals import error_info, targets_of
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.bill import FinishedBill
from shared.messages.common import Empty, ErrorCode
from shared.messages.conductor import (
    ChangeReplicaReply,
    ChangeReplicaRequest,
    ModelsReply,
    PlaceReply,
    PlaceRequest,
    ReplicationState,
    StateReply,
)
from shared.messages.index import MatchReply, MatchRequest
from shared.messages.outcomes import Outcomes
from shared.messages.reports import GatewayReport, InstanceReport, NodeReport
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.micro import Endpoint
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.events import InstanceReported, NodeReported
from shared.scheduling.vocabulary import Refusal, Role
from shared.telemetry import about, tracing

TURN_TIMEOUT_S = 0.8
"""With the time that a match and a placement may take it is not more than the gateway waits."""
MAX_PLACING = 16
"""Placements under way; more wait in order. All at once they would wait for one another's CPU until
each of them was out of time, and none would see what the others brought."""
TOO_BUSY = "conductor_busy"


class Handlers:
    def __init__(
        self,
        conductor_id: str,
        bus: Bus,
        core: ConductorCore,
        clock: Callable[[], float],
        match_timeout_s: float,
    ) -> None:
        self._id = conductor_id
        self._match_timeout_s = match_timeout_s
        self._bus = bus
        self._core = core
        self._clock = clock
        self._instances: Heard[InstanceReport] = Heard()
        self.nodes: Heard[NodeReport] = Heard()
        self._gateways: Heard[GatewayReport] = Heard()
        self._replicas = Replicas(bus, self.nodes, self._models)
        self._turns = asyncio.Semaphore(MAX_PLACING)
        self.driver: Driver | None = None
        self.replicating: Replicating | None = None
        self.journal: JournalFile | None = None
        self.decisions = Decisions()

    # --- plain subscriptions -------------------------------------------------------------------
    def on_instance(self, report: InstanceReport) -> None:
        self._instances.hear(report, self._clock())
        self.feed(InstanceReported(convert.view_of(report)))

    def on_node(self, report: NodeReport) -> None:
        self.nodes.hear(report, self._clock())
        self.feed(NodeReported((report.id, report.incarnation), report.bytes_in_flight))

    def on_gateway(self, report: GatewayReport) -> None:
        self._gateways.hear(report, self._clock())

    def on_bill(self, bill: FinishedBill) -> None:
        cost = self._core.learnt(bill.model).cost
        prefill_s = cost.prefill_s(bill.reuse.prompt_tokens, bill.reuse.cached_tokens)
        for seen in convert.outcomes_of(bill, prefill_s):
            self.feed(seen)
        self.feed(convert.bill_of(bill))

    def on_outcomes(self, message: Outcomes) -> None:
        for seen in convert.outcomes_seen(message):
            self.feed(seen)

    def on_gone(self, role: Role, instance_id: str, incarnation: str) -> None:
        self._instances.forget(role, instance_id, incarnation)

    def feed(self, event: Any) -> None:
        assert self.driver is not None
        self.driver.feed(event)

    # --- questions -----------------------------------------------------------------------------
    async def place(self, message: PlaceRequest) -> PlaceReply:
        with tracing.span("place", "server", {"attempt": message.ref.attempt}) as span:
            reply = await self._place(message)
            span.set(convert.told_of(reply))
        return reply

    async def _place(self, message: PlaceRequest) -> PlaceReply:
        assert self.driver is not None
        came_s = self._clock()
        await self._take_turn(message.remaining_ms)
        try:
            waited_ms = int((self._clock() - came_s) * 1e3)
            if waited_ms:
                left = {"remaining_ms": max(0, message.remaining_ms - waited_ms)}
                message = message.model_copy(update=left)
            found = await self._match(message, about.current().traceparent)
            reply = await self.driver.place(
                convert.request_of(message, found),
                convert.matches_of(found),
                message.traceparent,
                message.run,
            )
        finally:
            self._turns.release()
        self._count(reply, came_s)
        return reply

    async def _take_turn(self, remaining_ms: int) -> None:
        if not self._turns.locked():
            await self._turns.acquire()  # at once
            return
        try:
            async with asyncio.timeout(min(TURN_TIMEOUT_S, remaining_ms / 1e3)):
                await self._turns.acquire()
        except TimeoutError:
            self.decisions.refused(TOO_BUSY)
            raise ServiceError(
                ErrorCode.OVERLOADED,
                "this conductor has more to place than it can; try again",
                is_retryable=True,
                retry_after_s=1.0,
            ) from None

    def _count(self, reply: PlaceReply, came_s: float) -> None:
        if reply.placement is not None:
            self.decisions.placed(reply.placement.policy)
        elif reply.refusal is not None:
            self.decisions.refused(str(reply.refusal.code))
        self.decisions.took(self._clock() - came_s)

    async def explain(self, message: PlaceRequest) -> PlaceReply:
        found = await self._match(message, "")
        outcome = self._core.explain(
            convert.request_of(message, found), convert.matches_of(found), self._clock()
        )
        if isinstance(outcome, Refusal):
            return PlaceReply(refusal=error_info(outcome), targets=targets_of(outcome))
        return convert.placed_reply(outcome)

    async def _match(self, message: PlaceRequest, traceparent: str) -> MatchReply:
        """What is cached where; nothing when no cache-index answers at once."""
        if len(message.chain) % KEY_BYTES:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"chain: {len(message.chain)} bytes are no whole keys of {KEY_BYTES}",
                field="chain",
            )
        if message.cache != "on" or not message.chain:
            return MatchReply()
        root = next((m.root for m in self._models() if m.name == message.model), None)
        if root is None:
            return MatchReply()
        try:
            return await self._bus.request(
                subjects.INDEX_MATCH,
                MatchRequest(
                    root=root,
                    chain=message.chain,
                    request_id=message.ref.request_id,
                    traceparent=traceparent,
                ),
                MatchReply,
                timeout_s=self._match_timeout_s,
            )
        except ServiceError:
            self.decisions.matches_missed_total += 1
            return MatchReply()

    def _models(self) -> list[Any]:
        return models_of(self._instances.current(self._clock()))

    async def models(self, _: Empty) -> ModelsReply:
        return ModelsReply(models=self._models())

    async def state(self, _: Empty) -> StateReply:
        return self.state_now()

    def state_now(self) -> StateReply:
        now_s, journal, replicating = self._clock(), self.journal, self.replicating
        models = self._models()
        return StateReply(
            conductor=self._id,
            instances=self._instances.current(now_s),
            nodes=self.nodes.current(now_s),
            gateways=self._gateways.current(now_s),
            models=models,
            slos=convert.slos_of(self._core.settings, [model.name for model in models]),
            policy=self._core.settings.policy,
            admission=self._core.settings.admission,
            prediction_errors={
                model: convert.errors_of(summary)
                for model, summary in self._core.prediction_errors().items()
            },
            replication=(
                ReplicationState(is_on=False) if replicating is None else replicating.state()
            ),
            is_journal_on=journal is not None and journal.is_on,
            journal_lost_total=0 if journal is None else journal.lost_total,
            quarantined=convert.kept_out_of(self._core.view.quarantine.kept_out(now_s), now_s),
        )

    def endpoints(self) -> list[Endpoint[Any, Any]]:
        return [
            Endpoint(
                "place",
                subjects.CONDUCTOR_PLACE,
                PlaceRequest,
                PlaceReply,
                self.place,
                "Where an attempt shall run; room is promised",
                max_running=4_096,
            ),
            Endpoint(
                "explain",
                subjects.CONDUCTOR_EXPLAIN,
                PlaceRequest,
                PlaceReply,
                self.explain,
                "What place would decide; promises nothing",
            ),
            Endpoint(
                "state",
                subjects.CONDUCTOR_STATE,
                Empty,
                StateReply,
                self.state,
                "Everybody this conductor hears",
            ),
            Endpoint(
                "change_replica",
                subjects.CONDUCTOR_CHANGE_REPLICA,
                ChangeReplicaRequest,
                ChangeReplicaReply,
                self._replicas.change_replica,
                "Have a prefix on so many nodes",
            ),
            Endpoint(
                "models",
                subjects.CONDUCTOR_MODELS,
                Empty,
                ModelsReply,
                self.models,
                "Models that ready instances serve",
            ),
        ]
