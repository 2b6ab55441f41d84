"""One role of a worker process: its loop, its attachment to a pool, its reports and subjects.

A process has one of them, or two in the role `both`; each is an instance of its own to the
cluster, with its own incarnation and state. They share the model and the compute thread.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shared.engine.loaded_model import LoadedModel
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.decode import KvReady
from shared.messages.reports import LEASE_S, InstanceReport
from shared.messages.worker import Drain, DrainReply
from shared.runtime.bus import Subscription
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.heartbeat import Heartbeat
from shared.runtime.lifecycle import Context
from shared.runtime.micro import AnyEndpoint, Endpoint
from shared.telemetry.metric import Reading
from shared.worker import pool_session
from shared.worker.compute import ComputeThread
from shared.worker.decode_loop import DecodeLoop
from shared.worker.endpoints import endpoints_of
from shared.worker.format_claim import claim_format
from shared.worker.grid import Grid
from shared.worker.membership import Membership
from shared.worker.parts import WorkerParts
from shared.worker.peer_watch import PeerWatch
from shared.worker.pool_session import PoolSession, Role
from shared.worker.prefill_loop import PrefillLoop
from shared.worker.readings import readings_of
from shared.worker.settings import WorkerSettings

ATTACH_TIMEOUT_S = 30.0
ATTACH_AGAIN_S = 1.0
HAND_BACK_S = 1.0
"""Of the drain time, what is kept for giving back what did not finish."""


class RoleUnit:
    """From `start` to `stop`; `drain` lets the work that runs finish."""

    def __init__(
        self,
        process: Context[WorkerSettings],
        role: Role,
        loaded: LoadedModel,
        compute: ComputeThread,
    ) -> None:
        self.role: Role = role
        self.context = replace(
            process,
            service=role,
            incarnation=secrets.token_hex(8),
            state="starting",
            tasks=process.tasks.nested(),
            _micro=None,
        )
        self.session: PoolSession | None = None
        self._loaded = loaded
        self._kv_format = loaded.kv_format.to_dict()
        watch = PeerWatch(LEASE_S, monotonic_s())
        subject = subjects.report(role, process.id)
        self._heartbeat = Heartbeat(process.bus, subject, self._report)
        parts = WorkerParts(
            context=self.context,
            loaded=loaded,
            compute=compute,
            grid=Grid(loaded.layout.block_tokens, loaded.grid_tokens),
            watch=watch,
            poke=self._heartbeat.poke,
        )
        self.loop = PrefillLoop(parts) if role == "prefill" else DecodeLoop(parts)
        self._membership = Membership(process.bus, watch, self.loop, process.id)
        self._subscriptions: list[Subscription] = []
        self._forget_readings: Callable[[], None] = lambda: None
        self._endpoints: list[AnyEndpoint] = []
        self._is_ending = self._is_attached = False
        self._is_drained = False
        """An operator took it out of work."""

    async def start(self, further: Sequence[AnyEndpoint] = ()) -> None:
        """Attach, take part, be ready. `further` are served beside the role's own endpoints."""
        context, loop, loaded = self.context, self.loop, self._loaded
        session = self.session = await self._attach()
        await claim_format(context.bus, loaded.source.name, context.id, loaded.kv_format)
        loop.open(session)
        loop.start()
        self._subscriptions += await self._membership.subscribe()
        self._endpoints = [*endpoints_of(loop, context.id), self._drain_endpoint(), *further]
        await self._serve(session)
        if isinstance(loop, DecodeLoop):
            kv_subject = subjects.instance("decode", context.id, "kv")
            self._subscriptions.append(
                await context.bus.subscribe(kv_subject, KvReady, loop.kv_ready)
            )
        context.tasks.start_soon(self._membership.run(), name="membership")
        context.tasks.start_soon(self._keep_attached(), name="pool attachment")
        self._forget_readings = context.meters.add(self.role, self._readings)
        self._settle_state(is_attached=True)
        context.tasks.start_soon(self._heartbeat.run(), name="heartbeat")

    async def _serve(self, session: PoolSession) -> None:
        metadata = {"model": self._loaded.source.name, "node": session.node.id}
        await self.context.serve(self._endpoints, metadata=metadata)

    def _settle_state(self, *, is_attached: bool) -> None:
        """Reservations are refused unless it is ready."""
        is_ending = self._is_ending or self.context.stopping.is_set()
        is_out = is_ending or self._is_drained or not is_attached
        self.context.state = "draining" if is_out else "ready"
        self._is_attached = is_attached
        self._heartbeat.poke()

    async def drain_for_operator(self, request: Drain) -> DrainReply:
        """What runs goes on; nothing new comes until that is taken back."""
        self._is_drained = not request.is_over
        self._settle_state(is_attached=self._is_attached)
        return DrainReply(state=self.context.state)

    async def drain(self, timeout_s: float) -> None:
        """New reservations are refused by the state; what runs may finish in time."""
        self._is_ending = True
        self._settle_state(is_attached=self._is_attached)
        attempts = self.loop.attempts
        try:
            async with asyncio.timeout(max(timeout_s - HAND_BACK_S, 0.0)):
                await attempts.wait_idle()
        except TimeoutError:
            attempts.stop_all(
                ServiceError(
                    ErrorCode.DRAINING, "the instance stops; retry elsewhere", is_retryable=True
                )
            )
            await attempts.wait_idle()

    def _drain_endpoint(self) -> Endpoint[Drain, DrainReply]:
        return Endpoint(
            name="drain",
            subject=subjects.instance(self.role, self.context.id, "drain"),
            request_type=Drain,
            reply_type=DrainReply,
            handler=self.drain_for_operator,
            description="Promise no more room and finish what runs; or end that",
        )

    async def stop(self, timeout_s: float) -> None:
        """Leave no subscription, task or attachment; ServiceError when a task does not end."""
        self._forget_readings()
        await self.context.stop_serving()
        for subscription in self._subscriptions:
            await subscription.stop()
        self._subscriptions.clear()
        left = await self.context.tasks.end(timeout_s)
        if self.session is not None:
            self.session.close()
        if left:
            raise ServiceError(ErrorCode.INTERNAL, f"tasks that do not end: {', '.join(left)}")

    async def _attach(self) -> PoolSession:
        """Waits for a transfer as long as it takes."""
        context = self.context
        while True:
            try:
                session = await pool_session.open_session(
                    context.settings, self._loaded, self.role, context.incarnation, ATTACH_TIMEOUT_S
                )
            except ServiceError as error:
                if error.code != ErrorCode.POOL_LOST:
                    raise
                context.log.warning("%s", error)
                await asyncio.sleep(ATTACH_AGAIN_S)  # it may have failed at once
                continue
            context.log.info("attached to the pool of node %s", session.node.id)
            return session

    async def _keep_attached(self) -> None:
        """When the pool goes: end what needs it, then attach anew as another incarnation."""
        context = self.context
        while self.session is not None:
            await self.session.client.wait_lost()
            if context.stopping.is_set():
                return
            context.log.warning("the pool of node %s is gone", self.session.node.id)
            self._settle_state(is_attached=False)
            await self.loop.give_up_pool()
            self.session.close()
            if self._is_ending:
                return
            context.incarnation = secrets.token_hex(8)
            self.session = await self._attach()
            self.loop.open(self.session)
            if self._is_ending:
                return
            # What a micro service says of itself never changes: another incarnation, another one.
            await context.stop_serving()
            await self._serve(self.session)
            self._settle_state(is_attached=True)

    def _readings(self) -> Iterator[Reading]:
        return readings_of(self._report(), self.loop.load())

    def _report(self) -> InstanceReport:
        if self.session is None:
            raise RuntimeError("reports begin when the instance is attached")
        context, loaded, load = self.context, self._loaded, self.loop.load()
        return InstanceReport(
            service=self.role,
            id=context.id,
            incarnation=context.incarnation,
            node=self.session.node.id,
            node_incarnation=self.session.node.incarnation,
            state=context.state,
            model=loaded.source.name,
            root=loaded.kv_format.root(),
            kv_format=self._kv_format,
            block_tokens=loaded.layout.block_tokens,
            grid_tokens=loaded.grid_tokens,
            block_bytes=loaded.layout.block_bytes,
            context_tokens=loaded.config.max_positions,
            queued_requests=load.queued_requests,
            queued_tokens=load.queued_tokens,
            running=load.running,
            free_tokens=load.free_tokens,
            capacity_tokens=load.capacity_tokens,
            context_in_batch_tokens=load.context_in_batch_tokens,
            admit_tokens=load.admit_tokens,
            preempted=load.preempted,
            saved_tokens=load.saved_tokens,
            preemptions_total=load.preemptions_total,
            expected_start_s=load.expected_start_s,
            discipline=load.discipline,
            work_by_size_s=list(load.work_by_size_s),
            prompts_by_size=list(load.prompts_by_size),
        )
