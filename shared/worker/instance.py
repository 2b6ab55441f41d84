"""One prefill or decode process: model, pool, role, reports. The composition root of a worker."""

import asyncio
import secrets

from shared.checkpoint.errors import CheckpointError
from shared.engine.errors import EngineError
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.self_test import run_self_test
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.decode import KvReady
from shared.messages.reports import LEASE_S, InstanceReport
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.heartbeat import Heartbeat
from shared.runtime.lifecycle import Context
from shared.worker.compute import ComputeThread
from shared.worker.decode_loop import DecodeLoop
from shared.worker.endpoints import endpoints_of
from shared.worker.format_claim import claim_format
from shared.worker.grid import Grid
from shared.worker.membership import Membership
from shared.worker.parts import WorkerParts
from shared.worker.peer_watch import PeerWatch
from shared.worker.pool_session import PoolSession, Role, open_session
from shared.worker.prefill_loop import PrefillLoop
from shared.worker.settings import WorkerSettings

ATTACH_TIMEOUT_S = 30.0
ATTACH_AGAIN_S = 1.0
HAND_BACK_S = 1.0
"""Of the drain time, what is kept for giving back what did not finish."""


class WorkerService:
    """A `Service` for the runtime; both worker mains run it, each with its role."""

    def __init__(self, settings: WorkerSettings, role: Role) -> None:
        self._settings = settings
        self._role: Role = role
        self._compute = ComputeThread()
        self._session: PoolSession | None = None
        self._loop: PrefillLoop | DecodeLoop | None = None

    async def start(self, context: Context[WorkerSettings]) -> None:
        loaded = await self._compute.run(self._load_model)
        context.log.info("model %s is loaded", loaded.source.name)
        session = await self._attach(context, loaded)
        self._session = session
        await claim_format(context.bus, loaded.source.name, context.id, loaded.kv_format)
        watch = PeerWatch(LEASE_S, monotonic_s())
        heartbeat = Heartbeat(
            context.bus,
            subjects.report(self._role, context.id),
            lambda: self._report(context, loaded),
        )
        parts = WorkerParts(
            context=context,
            loaded=loaded,
            compute=self._compute,
            grid=Grid(loaded.layout.block_tokens, loaded.grid_tokens),
            watch=watch,
            poke=heartbeat.poke,
        )
        loop = self._make_loop(parts)
        self._loop = loop
        loop.open(session)
        loop.start()
        membership = Membership(context.bus, watch, loop, context.id)
        await membership.subscribe()
        await context.serve(
            endpoints_of(loop, context.id),
            metadata={"model": loaded.source.name, "node": session.node.id},
        )
        if isinstance(loop, DecodeLoop):
            kv_subject = subjects.instance("decode", context.id, "kv")
            await context.bus.subscribe(kv_subject, KvReady, loop.kv_ready)
        context.tasks.start_soon(membership.run(), name="membership")
        context.tasks.start_soon(
            self._keep_attached(context, loaded, loop, heartbeat), name="pool attachment"
        )
        context.state = "ready"
        context.tasks.start_soon(heartbeat.run(), name="heartbeat")

    async def drain(self) -> None:
        """New reservations are refused by the state; what runs may finish in time."""
        if self._loop is None:
            return
        attempts = self._loop.attempts
        try:
            async with asyncio.timeout(max(self._settings.drain_timeout_s - HAND_BACK_S, 0.0)):
                await attempts.wait_idle()
        except TimeoutError:
            attempts.stop_all(
                ServiceError(
                    ErrorCode.DRAINING, "the instance stops; retry elsewhere", is_retryable=True
                )
            )
            await attempts.wait_idle()

    async def stop(self) -> None:
        if self._session is not None:
            self._session.close()
        self._compute.close()

    def _load_model(self) -> LoadedModel:
        """In the compute thread, whose thread count this sets."""
        settings = self._settings
        try:
            loaded = load_model(
                settings.model,
                dtype=settings.dtype,
                mode=settings.mode,
                cache_dir=settings.cache_dir,
                threads=settings.threads,
                block_tokens=settings.block_tokens,
                device=settings.device,
            )
            failures = run_self_test(loaded, settings.cache_dir)
        except (CheckpointError, EngineError) as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, str(error)) from error
        if failures and settings.mode == "exact":
            raise ServiceError(
                ErrorCode.FORMAT_MISMATCH,
                "MOONPOOL_MODE=exact cannot be kept on this machine: " + "; ".join(failures),
            )
        return loaded

    def _make_loop(self, parts: WorkerParts) -> PrefillLoop | DecodeLoop:
        return PrefillLoop(parts) if self._role == "prefill" else DecodeLoop(parts)

    async def _attach(self, context: Context[WorkerSettings], loaded: LoadedModel) -> PoolSession:
        """Waits for a transfer as long as it takes."""
        while True:
            try:
                session = await open_session(
                    self._settings, loaded, self._role, context.incarnation, ATTACH_TIMEOUT_S
                )
            except ServiceError as error:
                if error.code != ErrorCode.POOL_LOST:
                    raise
                context.log.warning("%s", error)
                await asyncio.sleep(ATTACH_AGAIN_S)  # it may have failed at once
                continue
            context.log.info("attached to the pool of node %s", session.node.id)
            return session

    async def _keep_attached(
        self,
        context: Context[WorkerSettings],
        loaded: LoadedModel,
        loop: PrefillLoop | DecodeLoop,
        heartbeat: Heartbeat,
    ) -> None:
        """When the pool goes: end what needs it, then attach anew as another incarnation."""
        while self._session is not None:
            await self._session.client.wait_lost()
            if context.stopping.is_set():
                return
            context.log.warning("the pool of node %s is gone", self._session.node.id)
            context.state = "draining"
            heartbeat.poke()
            await loop.give_up_pool()
            self._session.close()
            context.incarnation = secrets.token_hex(8)
            self._session = await self._attach(context, loaded)
            loop.open(self._session)
            if not context.stopping.is_set():
                context.state = "ready"
            heartbeat.poke()

    def _report(self, context: Context[WorkerSettings], loaded: LoadedModel) -> InstanceReport:
        if self._loop is None or self._session is None:
            raise RuntimeError("reports begin when the instance is attached")
        load = self._loop.load()
        return InstanceReport(
            service=self._role,
            id=context.id,
            incarnation=context.incarnation,
            node=self._session.node.id,
            node_incarnation=self._session.node.incarnation,
            state=context.state,
            model=loaded.source.name,
            root=loaded.kv_format.root(),
            kv_format=loaded.kv_format.to_dict(),
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
            expected_start_s=load.expected_start_s,
        )
