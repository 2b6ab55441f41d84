"""Workers in the test process over a real NATS, with a gateway that the test plays."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from shared.messages import subjects
from shared.messages.bill import Reuse
from shared.messages.common import (
    CacheMode,
    ErrorInfo,
    FetchSource,
    InstanceRef,
    NodeRef,
    Ok,
    RequestRef,
    Sampling,
)
from shared.messages.decode import DecodeRun
from shared.messages.envelope import encode
from shared.messages.index import ClaimFormat, ClaimReply
from shared.messages.prefill import Cancel, PrefillRun, Reserve, ReserveReply, UnplacedRun
from shared.messages.reports import GatewayReport
from shared.messages.tokens import PromptLogprobs, TokenChunk
from shared.runtime.bus import Bus
from shared.runtime.heartbeat import Heartbeat
from shared.runtime.lifecycle import Context
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks
from shared.worker.decode_loop import DecodeLoop
from shared.worker.instance import WorkerService
from shared.worker.parts import Load
from shared.worker.pool_session import Role
from shared.worker.prefill_loop import PrefillLoop
from shared.worker.role_unit import RoleUnit
from shared.worker.settings import WorkerSettings
from tests.support.reference_answers import MODEL, ModelFormat, Tokens, chain_of

LOG = logging.getLogger("test")
PATIENCE_S = 60.0
"""For an answer: more than it takes beside other tests on few cores."""


@dataclass
class Answer:
    """What the gateway has got of one attempt."""

    ref: RequestRef
    tokens: dict[int, int] = field(default_factory=dict)
    chunks: list[TokenChunk] = field(default_factory=list)
    error: ErrorInfo | None = None
    finish_reason: str | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> list[int]:
        return [self.tokens[index] for index in sorted(self.tokens)]

    @property
    def prompt(self) -> list[PromptLogprobs]:
        """Pieces as they came."""
        return [chunk.prompt for chunk in self.chunks if chunk.prompt is not None]

    @property
    def reuse(self) -> Reuse:
        """As the last stage told it."""
        return [chunk.reuse for chunk in self.chunks if chunk.reuse is not None][-1]

    def on_chunk(self, chunk: TokenChunk) -> None:
        self.chunks.append(chunk)
        for offset, token in enumerate(chunk.tokens):
            self.tokens[chunk.index + offset] = token
        self.error = chunk.error or self.error
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.error is not None or chunk.finish_reason is not None:
            self.ended.set()

    async def done(self, timeout_s: float = PATIENCE_S) -> "Answer":
        async with asyncio.timeout(timeout_s):
            await self.ended.wait()
        return self


class Worker:
    """One instance in this process."""

    def __init__(
        self,
        service: WorkerService,
        process: Context[WorkerSettings],
        role: Role | None = None,
    ) -> None:
        self.service = service
        self.process = process
        self._role = role

    def as_role(self, role: Role) -> "Worker":
        """The same process, of which this role is meant."""
        return Worker(self.service, self.process, role)

    @property
    def unit(self) -> RoleUnit:
        units = self.service.units
        return units[self._role or next(iter(units))]

    @property
    def context(self) -> Context[WorkerSettings]:
        return self.unit.context

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(
            id=self.context.id, incarnation=self.context.incarnation, node=self.node.id
        )

    @property
    def node(self) -> NodeRef:
        assert self.unit.session is not None
        return self.unit.session.node

    @property
    def loop(self) -> PrefillLoop | DecodeLoop:
        return self.unit.loop

    @property
    def load(self) -> Load:
        return self.loop.load()

    @property
    def num_attempts(self) -> int:
        return len(self.loop.attempts)

    @property
    def device_tokens(self) -> int:
        """Of decode's cache, taken now."""
        return self.loop._work.used_tokens if isinstance(self.loop, DecodeLoop) else 0


class WorkerBench:
    """Starts workers and plays conductor, cache-index and gateway for them."""

    def __init__(self, bus: Bus, tasks: Tasks, folder: Path, shared_dir: Path) -> None:
        self.bus = bus
        self.tasks = tasks
        self.folder = folder
        self.shared_dir = shared_dir
        self.format = ModelFormat()
        self.workers: list[Worker] = []
        self.gateway = "gw"
        self.gateway_incarnation = "gw-1"
        self.lost_attempts: list[str] = []
        self.heartbeat: asyncio.Task[None] | None = None
        self._numbers = count(1)

    async def start(self) -> None:
        beat = Heartbeat(
            self.bus,
            subjects.report("gateway", self.gateway),
            lambda: GatewayReport(
                id=self.gateway,
                incarnation=self.gateway_incarnation,
                state="ready",
                lost_attempts=self.lost_attempts,
            ),
        )
        self.heartbeat = self.tasks.start_soon(beat.run(), name="gateway heartbeat")

        async def claim(message: ClaimFormat) -> ClaimReply:
            return ClaimReply(is_accepted=True, current=message.kv_format)

        index = MicroService(self.bus, self.tasks, LOG)
        endpoint = Endpoint(
            "claim", subjects.INDEX_CLAIM_FORMAT, ClaimFormat, ClaimReply, claim, "claims"
        )
        await index.start(
            name="index", version="0.0.1", description="i", metadata={}, endpoints=[endpoint]
        )
        await self.bus.flush()

    async def start_worker(self, service_name: Any, node: str, **settings: Any) -> Worker:
        name = f"{service_name}-{node}-{len(self.workers)}"
        made = WorkerSettings(
            instance_id=name,
            model=MODEL,
            cache_dir=self.folder,
            shared_dir=self.shared_dir,
            node=node,
            block_tokens=self.format.block_tokens,
            dtype=self.format.dtype,
            **settings,
        )
        service = WorkerService(made, service_name)
        context: Context[WorkerSettings] = Context(
            service=service_name,
            settings=made,
            bus=self.bus,
            tasks=self.tasks,
            log=LOG,
            incarnation=f"{name}-1",
            stopping=asyncio.Event(),
        )
        worker = Worker(service, context)
        self.workers.append(worker)
        async with asyncio.timeout(20):
            await service.start(context)
        return worker

    def new_ref(self, attempt: int = 0, request_id: str | None = None) -> RequestRef:
        return RequestRef(
            request_id=request_id or f"r{next(self._numbers)}",
            attempt=attempt,
            gateway=self.gateway,
            gateway_incarnation=self.gateway_incarnation,
        )

    async def reserve(
        self, worker: Worker, ref: RequestRef, tokens: Tokens, **fields: Any
    ) -> ReserveReply:
        message = Reserve(
            **{
                "ref": ref,
                "incarnation": worker.context.incarnation,
                "num_tokens": len(tokens),
                "max_tokens": 8,
                **fields,
            }
        )
        subject = subjects.instance(worker.context.service, worker.context.id, "reserve")
        return await self.bus.request(subject, message, ReserveReply, timeout_s=5)

    async def submit(
        self,
        tokens: Tokens,
        prefill: Worker,
        decode: Worker | None,
        *,
        cache: CacheMode = "on",
        source: FetchSource | None = None,
        sampling: Sampling | None = None,
        given: Sequence[int] = (),
        ref: RequestRef | None = None,
        remaining_ms: int = int(PATIENCE_S * 1e3),
        cached_tokens: int = 0,
        prompt_logprobs: int | None = None,
        judged_tbt_ms: float | None = None,
    ) -> Answer:
        """Reserve at both and run at both, as conductor and gateway do; without `decode` at one."""
        ref = ref or self.new_ref()
        sampling = sampling or Sampling(max_tokens=8, ignore_eos=True)
        answer, reply_subject = await self.listen(ref)
        chain = chain_of(tokens, self.format)
        common: dict[str, Any] = {"chain": chain, "cache": cache}
        for_decode = {**common, "max_tokens": sampling.max_tokens}
        for_prefill = {
            **for_decode,
            "source": source,
            "cached_tokens": cached_tokens,
            "judged_tbt_ms": judged_tbt_ms,
        }
        asked = [self.reserve(prefill, ref, tokens, **for_prefill)]
        if decode is not None:
            asked.append(self.reserve(decode, ref, tokens, **for_decode))
        replies = await asyncio.gather(*asked)
        assert all(reply.is_accepted for reply in replies), replies
        fields: dict[str, Any] = {
            **common,
            "sampling": sampling,
            "reply_subject": reply_subject,
            "remaining_ms": remaining_ms,
        }
        own = {"given": given, "source": source, "prompt_logprobs": prompt_logprobs, **fields}
        runs = [self.run_alone(prefill, tokens, ref, prefill, decode, **own)]
        if decode is not None:
            runs.append(self.run_alone(decode, tokens, ref, prefill, decode, given=given, **fields))
        await asyncio.gather(*runs)
        return answer

    async def listen(self, ref: RequestRef) -> tuple[Answer, str]:
        """What comes of an attempt, and the subject on which it comes."""
        answer = Answer(ref)
        subject = subjects.gateway_tokens(self.gateway, ref.request_id, ref.attempt)
        await self.bus.subscribe(subject, TokenChunk, answer.on_chunk, is_acknowledged=True)
        return answer, subject

    async def reserve_with_run(
        self,
        worker: Worker,
        ref: RequestRef,
        tokens: Tokens,
        decode: Worker | None,
        reply_subject: str,
        sampling: Sampling,
        **fields: Any,
    ) -> ReserveReply:
        """At a prefill instance, which starts the run if it accepts."""
        run = UnplacedRun(
            model=MODEL,
            tokens=tokens.astype("<i4").tobytes(),
            sampling=sampling,
            reply_subject=reply_subject,
        )
        early: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "chain": chain_of(tokens, self.format),
            "run": encode(run),
            "decode": None if decode is None else decode.ref,
            "remaining_ms": int(PATIENCE_S * 1e3),
        }
        return await self.reserve(worker, ref, tokens, **early, **fields)

    async def submit_decode_alone(
        self, tokens: Tokens, prefill: InstanceRef, decode: Worker
    ) -> Answer:
        """Decode expects KV of a prefill instance that the test plays or kills."""
        answer, reply_subject = await self.listen(self.new_ref())
        await self.reserve(decode, answer.ref, tokens)
        await self.run_alone(
            decode, tokens, answer.ref, prefill, decode, reply_subject=reply_subject
        )
        return answer

    async def run_alone(
        self,
        worker: Worker,
        tokens: Tokens,
        ref: RequestRef,
        prefill: Worker | InstanceRef,
        decode: Worker | None,
        *,
        given: Sequence[int] = (),
        **fields: Any,
    ) -> None:
        """The run of one of the two."""
        fields = {
            "chain": chain_of(tokens, self.format),
            "sampling": Sampling(max_tokens=8, ignore_eos=True),
            "reply_subject": "moonpool.gateway.gw.tokens.none.0",
            "remaining_ms": int(PATIENCE_S * 1e3),
            "ref": ref,
            "model": MODEL,
            "incarnation": worker.context.incarnation,
            **fields,
        }
        message: DecodeRun | PrefillRun
        if worker.context.service == "decode":
            given_tokens = np.asarray(given, dtype="<i4").tobytes()
            message = DecodeRun(
                num_tokens=len(tokens),
                prefill=prefill if isinstance(prefill, InstanceRef) else prefill.ref,
                given_tokens=given_tokens,
                **fields,
            )
        else:
            message = PrefillRun(
                tokens=tokens.astype("<i4").tobytes(),
                decode=None if decode is None else decode.ref,
                is_resume=bool(given),
                **fields,
            )
        subject = subjects.instance(worker.context.service, worker.context.id, "run")
        await self.bus.request(subject, message, Ok, timeout_s=5)

    async def cancel(self, ref: RequestRef, *workers: Worker) -> None:
        for worker in workers or self.workers:
            subject = subjects.instance(worker.context.service, worker.context.id, "cancel")
            await self.bus.request(subject, Cancel(ref=ref), Ok, timeout_s=5)

    async def stop(self) -> None:
        for worker in self.workers:
            worker.process.stopping.set()
            for unit in worker.service.units.values():
                await unit.context.stop_serving()
            await worker.service.stop()
        assert await self.tasks.end(5) == []


@asynccontextmanager
async def worker_bench(nats_url: str, folder: Path, shared_dir: Path) -> AsyncIterator[WorkerBench]:
    bus = await Bus.connect(nats_url, name="bench")
    try:
        async with asyncio.TaskGroup() as group:
            bench = WorkerBench(bus, Tasks(group, LOG), folder, shared_dir)
            await bench.start()
            try:
                yield bench
            finally:
                await bench.stop()
    finally:
        await bus.close()
