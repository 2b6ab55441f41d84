"""Stands in for conductor, prefill and decode on a real bus, so that a gateway can be tested alone.

Tokens are a fixed text; what goes wrong is told by attributes that a test sets.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shared.messages import subjects
from shared.messages.bill import FinishedBill, Reuse, Times
from shared.messages.common import (
    Empty,
    ErrorCode,
    ErrorInfo,
    InstanceRef,
    Ok,
    RequestRef,
    Targets,
)
from shared.messages.conductor import (
    Candidate,
    ModelInfo,
    ModelsReply,
    Placement,
    PlaceReply,
    PlaceRequest,
)
from shared.messages.decode import DecodeRun
from shared.messages.prefill import Cancel, PrefillRun, Reserve
from shared.messages.reports import GatewayReport, InstanceReport, PingReply
from shared.messages.tokens import PromptLogprobs, TokenChunk, TokenLogprobs
from shared.runtime.bus import Bus
from shared.runtime.lifecycle import PingRequest
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks
from shared.worker.reserved_run import run_of

LOG = logging.getLogger("test.fake")
MODEL = "dummy:tiny"
ROOT = b"r" * 16
CONTEXT_TOKENS = 512
BLOCK_TOKENS = 16
EOS = 256
PREDICTED = Times(queue_s=0.1, compute_s=0.2, ttft_s=0.3)


@dataclass
class FakeInstance:
    """One prefill or decode. `open` lets it answer runs; closed, it holds them back."""

    cluster: "FakeCluster"
    service: Literal["prefill", "decode"]
    id: str
    incarnation: str
    runs: list[Any] = field(default_factory=list)
    cancels: list[RequestRef] = field(default_factory=list)
    drops: set[int] = field(default_factory=set)
    """Indices of chunks that get lost in these attempts."""
    drops_in_attempts: set[int] = field(default_factory=set)
    dies_after: int | None = None
    dies_after_pieces: int | None = None
    """Of the prompt's log probabilities."""
    drops_piece: int | None = None
    """Of them in attempt 0."""
    error: ErrorInfo | None = None
    is_silent: bool = False
    own_answer: list[int] | None = None
    """Other tokens than all others have."""
    is_alive: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ref(self) -> InstanceRef:
        return InstanceRef(id=self.id, incarnation=self.incarnation, node=f"node-{self.id}")

    async def start(self) -> None:
        self._micro = MicroService(self.cluster.bus, self.cluster.tasks, LOG)
        run_type = PrefillRun if self.service == "prefill" else DecodeRun
        endpoints: list[Endpoint[Any, Any]] = [
            self._endpoint("run", run_type, Ok, self._on_run),
            self._endpoint("cancel", Cancel, Ok, self._on_cancel),
            self._endpoint("ping", PingRequest, PingReply, self._on_ping),
        ]
        await self._micro.start(
            name=f"fake-{self.service}",
            version="0.0.1",
            description="fake",
            metadata={},
            endpoints=endpoints,
        )
        self.is_alive = True
        self.open.set()
        await self.report()

    async def die(self) -> None:
        self.is_alive = False
        await self._micro.stop()

    async def report(self, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "service": self.service,
            "id": self.id,
            "incarnation": self.incarnation,
            "node": self.ref.node,
            "node_incarnation": "n",
            "state": "ready",
            "model": MODEL,
            "root": ROOT,
            "kv_format": {},
            "block_tokens": BLOCK_TOKENS,
            "grid_tokens": BLOCK_TOKENS,
            "block_bytes": 1,
            "context_tokens": CONTEXT_TOKENS,
            "running": 1,
            **changes,
        }
        subject = subjects.report(self.service, self.id)
        await self.cluster.bus.publish(subject, InstanceReport(**fields))

    def _endpoint(self, name: str, request: Any, reply: Any, handler: Any) -> Endpoint[Any, Any]:
        subject = subjects.instance(self.service, self.id, name)
        return Endpoint(name, subject, request, reply, handler, name)

    async def _on_ping(self, _: PingRequest) -> PingReply:
        if self.is_silent:
            await asyncio.Event().wait()
        return PingReply(
            service=self.service, id=self.id, incarnation=self.incarnation, state="ready"
        )

    async def _on_cancel(self, cancel: Cancel) -> Ok:
        self.cancels.append(cancel.ref)
        return Ok()

    async def _on_run(self, run: Any) -> Ok:
        self.runs.append(run)
        work = self._prefill(run) if self.service == "prefill" else self._decode(run)
        self.cluster.tasks.start_contained(work, name=f"fake {self.id}")
        return Ok()

    async def _prefill(self, run: PrefillRun) -> None:
        await self.open.wait()
        if self.dies_after == 0:
            await self.die()
            return
        if self.error is not None:
            await self._send(run, 0, [], error=self.error)
            return
        if run.prompt_logprobs is not None and not await self._score(run, run.prompt_logprobs):
            return
        if run.decode is None:
            only = self.cluster.answer[: run.sampling.max_tokens]
            await self._send(run, 0, only, finish_reason="length", reuse=Reuse(scored_tokens=1))
            return
        if not run.is_resume:
            times = Times(queue_s=0.01, load_s=0.02, compute_s=0.03)
            reuse = Reuse(prompt_tokens=9_999, local_tokens=16, remote_tokens=16, fetched_bytes=100)
            answer = self.own_answer or self.cluster.answer
            await self._send(run, 0, answer[:1], times=times, reuse=reuse)
        self.cluster.handed_over(run.ref)

    async def _score(self, run: PrefillRun, num_top: int) -> bool:
        """Two tokens at a time: token t at place n has -n, the likelier token t+1 has -n / 2."""
        tokens = np.frombuffer(run.tokens, "<i4")
        for number, first in enumerate(range(1, len(tokens), 2)):
            if number == self.dies_after_pieces:
                await self.die()
                return False
            places = np.arange(first, min(first + 2, len(tokens)))
            piece = PromptLogprobs(
                first=first,
                logprobs=(-places).astype("<f4").tobytes(),
                num_top=num_top,
                top_tokens=(tokens[places] + 1).repeat(num_top).astype("<i4").tobytes(),
                top_logprobs=(-places / 2).repeat(num_top).astype("<f4").tobytes(),
            )
            if number != self.drops_piece or run.ref.attempt > 0:
                await self._send(run, 0, [], prompt=piece)
        return True

    async def _decode(self, run: DecodeRun) -> None:
        await self.cluster.hand_over(run.ref)
        await self.open.wait()
        drops = self.drops if run.ref.attempt in self.drops_in_attempts else set[int]()
        answer = self.cluster.answer[: run.sampling.max_tokens]
        first = max(1, len(np.frombuffer(run.given_tokens, "<i4")))
        for index in range(first, len(answer)):
            if self.dies_after is not None and index >= self.dies_after:
                await self.die()
                return
            await self.open.wait()
            if index not in drops:
                await self._send(run, index, answer[index : index + 1])
        reason = "stop" if answer[-1] == EOS else "length"
        reuse = Reuse(streamed_bytes=50, stream_s=0.5)
        times = Times(handoff_s=0.04)
        if len(answer) not in drops:
            await self._send(run, len(answer), [], finish_reason=reason, times=times, reuse=reuse)

    async def _send(
        self, run: PrefillRun | DecodeRun, index: int, tokens: Any, **more: Any
    ) -> None:
        num_top = run.sampling.top_logprobs
        likely = [(token, -0.5) for token in range(num_top or 0)]
        logprobs = [TokenLogprobs(logprob=-1.0 - token, top=likely) for token in tokens]
        chunk = TokenChunk(
            ref=run.ref,
            stage=self.service,
            index=index,
            incarnation=run.incarnation,
            tokens=tokens,
            logprobs=[] if num_top is None else logprobs,
            **more,
        )
        await self.cluster.bus.publish(run.reply_subject, chunk)
        if self.cluster.repeats_chunks:
            await self.cluster.bus.publish(run.reply_subject, chunk)


class FakeCluster:
    """One conductor that takes the first instances that are alive and not excluded."""

    def __init__(self, bus: Bus, tasks: Tasks) -> None:
        self.bus = bus
        self.tasks = tasks
        self.answer: list[int] = [*b"Hello, moon!", EOS]
        self.instances: list[FakeInstance] = []
        self.places: list[PlaceRequest] = []
        self.bills: list[FinishedBill] = []
        self.refusal: ErrorInfo | None = None
        self.targets: Targets | None = None
        self.losers: list[Candidate] = []
        self.repeats_chunks = False
        self.starts_early = False
        """Runs that come with the question begin before it is answered."""
        self.asks_first: list[str] = []
        """Prefill instances that begin such a run and are not chosen."""
        self.num_lost_replies = 0
        """Placements that are made and not told of."""
        self.place_gate = asyncio.Event()
        """Closed, it holds answers back."""
        self.place_gate.set()
        self.reply_refusal: ErrorInfo | None = None
        """As when instances accepted and others did not."""
        self.lost_attempts: list[str] = []
        """As gateways report them."""
        self._handovers: dict[str, asyncio.Event] = {}
        self._micro = MicroService(bus, tasks, LOG)

    async def start(self, num_each: int = 2) -> None:
        await self._micro.start(
            name="fake-conductor",
            version="0.0.1",
            description="fake",
            metadata={},
            endpoints=[
                Endpoint("m", subjects.CONDUCTOR_MODELS, Empty, ModelsReply, self._models, "m"),
                Endpoint("p", subjects.CONDUCTOR_PLACE, PlaceRequest, PlaceReply, self._place, "p"),
                Endpoint(
                    "e", subjects.CONDUCTOR_EXPLAIN, PlaceRequest, PlaceReply, self._place, "e"
                ),
            ],
        )
        await self.bus.subscribe(subjects.FINISHED_BILLS, FinishedBill, self.bills.append)
        await self.bus.subscribe(subjects.report("gateway", "*"), GatewayReport, self._on_gateway)
        for number in range(num_each):
            await self.add("prefill", f"p{number}")
            await self.add("decode", f"d{number}")
        await self.bus.flush()

    async def stop(self) -> None:
        await self._micro.stop()
        for instance in self.instances:
            if instance.is_alive:
                await instance.die()

    async def add(
        self, service: Literal["prefill", "decode"], instance_id: str, incarnation: str = "i"
    ) -> FakeInstance:
        instance = FakeInstance(self, service, instance_id, f"{instance_id}-{incarnation}")
        self.instances.append(instance)
        await instance.start()
        return instance

    def get(self, instance_id: str) -> FakeInstance:
        return next(one for one in self.instances if one.id == instance_id)

    def handed_over(self, ref: RequestRef) -> None:
        self._handovers.setdefault(ref.handle, asyncio.Event()).set()

    async def hand_over(self, ref: RequestRef) -> None:
        await self._handovers.setdefault(ref.handle, asyncio.Event()).wait()

    async def _models(self, _: Empty) -> ModelsReply:
        return ModelsReply(
            models=[
                ModelInfo(
                    name=MODEL,
                    root=ROOT,
                    kv_format={},
                    block_tokens=BLOCK_TOKENS,
                    grid_tokens=BLOCK_TOKENS,
                    context_tokens=CONTEXT_TOKENS,
                    block_bytes=1,
                )
            ]
        )

    async def _place(self, request: PlaceRequest) -> PlaceReply:
        self.places.append(request)
        if self.refusal is not None:
            return PlaceReply(refusal=self.refusal, targets=self.targets)
        prefill = self._pick("prefill", request.prefill, request.exclude)
        decode = None
        needs_decode = request.max_tokens > 1 or request.decode is not None
        if needs_decode:
            decode = self._pick("decode", request.decode, request.exclude)
        if prefill is None or (decode is None and needs_decode):
            error = ErrorInfo(code=ErrorCode.NO_INSTANCE, message="nobody left", is_retryable=True)
            return PlaceReply(refusal=error)
        is_started = self.starts_early and bool(request.run)
        if is_started:
            await self._start_early(request, prefill, decode)
        await self.place_gate.wait()
        if self.num_lost_replies:
            self.num_lost_replies -= 1
            await asyncio.Event().wait()
        if self.reply_refusal is not None:
            return PlaceReply(refusal=self.reply_refusal)
        return PlaceReply(
            placement=Placement(
                prefill=prefill.ref,
                decode=None if decode is None else decode.ref,
                local_blocks=0,
                source=None,
                predicted=PREDICTED,
                policy="fake",
                is_started=is_started,
            ),
            losers=self.losers,
        )

    async def _start_early(
        self, request: PlaceRequest, prefill: FakeInstance, decode: FakeInstance | None
    ) -> None:
        """As a reservation does that takes the run along."""
        for one in [*map(self.get, self.asks_first), prefill]:
            run = run_of(
                Reserve(
                    ref=request.ref,
                    incarnation=one.incarnation,
                    num_tokens=request.num_tokens,
                    max_tokens=request.max_tokens,
                    run=request.run,
                    decode=None if decode is None else decode.ref,
                    remaining_ms=request.remaining_ms,
                )
            )
            assert run is not None
            await one._on_run(run)

    def _on_gateway(self, report: GatewayReport) -> None:
        self.lost_attempts = report.lost_attempts or self.lost_attempts

    def _pick(self, service: str, wanted: str | None, exclude: list[str]) -> FakeInstance | None:
        for one in self.instances:
            is_free = one.is_alive and one.incarnation not in exclude
            if one.service == service and is_free and wanted in (None, one.id):
                return one
        return None
