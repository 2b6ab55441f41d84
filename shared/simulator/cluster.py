"""A cluster in virtual time around the real conductor: a thin driver of its core.

Requests arrive, the core decides, virtual instances answer its reservations; blocks are found in
the nodes' real pools. Decides nothing that the conductor decides.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.kv.ids import BlockKey
from shared.scheduling.admission import DEFAULT_RULE, AdmissionRule, is_decode_over
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.cost_model import CostModel
from shared.scheduling.effects import AnswerPlaced, AnswerRefused, Effect, SendReserve
from shared.scheduling.events import (
    BillFinished,
    Event,
    InstanceReported,
    NodeReported,
    PlaceAsked,
    ReserveAnswered,
    TimerFired,
)
from shared.scheduling.policies.registry import DEFAULT_POLICY
from shared.scheduling.queue_discipline import (
    DEFAULT_AGEING,
    DisciplineName,
    Waiting,
    make_discipline,
)
from shared.scheduling.replication import Replication, ReplicationSettings, miss_of
from shared.scheduling.slo import Slo
from shared.scheduling.vocabulary import (
    NO_SLO,
    NodeMatch,
    PlacementDecision,
    PlacementRequest,
)
from shared.simulator.event_loop import EventLoop
from shared.simulator.hardware import Hardware
from shared.simulator.outcome import Outcome, RequestOutcome
from shared.simulator.prefix_pool import key_of
from shared.simulator.reports import blank_view, decode_view, prefill_view
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest
from shared.simulator.under_way import UnderWay
from shared.simulator.virtual_decode import VirtualDecode
from shared.simulator.virtual_node import VirtualNode, transfer
from shared.simulator.virtual_prefill import PrefillJob, VirtualPrefill
from shared.simulator.virtual_replication import VirtualReplication

MODEL = "simulated"
INCARNATION = "1"
NEVER_S = 1e12


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    hardware: Hardware
    policy: str = DEFAULT_POLICY
    num_prefills: int = 8
    num_decodes: int = 8
    pool_tokens: int = 3_000_000
    """Of each prefill node; 0: nothing is kept."""
    eviction: str = "lru"
    discipline: DisciplineName | None = None
    """None: `shortest_first` under `moonpool`, else `fifo` as in the paper."""
    ageing: float = DEFAULT_AGEING
    chunk_tokens: int = 1_024
    """The paper's prefill_chunk is "typically more than 1,000 tokens"."""
    report_every_s: float = 0.5
    max_sources: int = 1
    balancing_threshold: float = 1.5
    slo: Slo = NO_SLO
    admission: AdmissionRule = DEFAULT_RULE
    is_learning: bool = True
    replication: ReplicationSettings | None = None
    """Copies ahead of need; None: only what requests fetch becomes a replica."""
    seed: int = 0

    @property
    def queue_discipline(self) -> DisciplineName:
        return self.discipline or ("shortest_first" if self.policy == "moonpool" else "fifo")


class SimulatedCluster:
    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        hardware = settings.hardware
        self.loop = EventLoop()
        self.core = ConductorCore(
            CoreSettings(
                policy=settings.policy,
                balancing_threshold=settings.balancing_threshold,
                lease_s=NEVER_S,
                max_sources=settings.max_sources,
                profile=hardware.costs,
                admission=settings.admission,
                slo=settings.slo,
            ),
            random.Random(settings.seed),
        )
        self.nodes: dict[str, VirtualNode] = {}
        self.prefills: dict[str, VirtualPrefill] = {}
        self.decodes: dict[str, VirtualDecode] = {}
        for number in range(settings.num_prefills):
            node = self._add_node(f"node-p{number:03}", settings.pool_tokens)
            self.prefills[f"prefill-{number:03}"] = VirtualPrefill(
                f"prefill-{number:03}",
                node,
                hardware,
                make_discipline(settings.queue_discipline, settings.ageing),
                settings.chunk_tokens,
                self.loop,
            )
        for number in range(settings.num_decodes):
            self._add_node(f"node-d{number:03}", 0)
            name = f"decode-{number:03}"
            self.decodes[name] = VirtualDecode(name, hardware, self.loop)
        self._blank = blank_view(MODEL, INCARNATION, BLOCK_TOKENS, hardware)
        self._reported_s: float = -NEVER_S
        self.replication = None if settings.replication is None else self._replication()
        self._requests: list[UnderWay] = []
        self._decode_cost = CostModel(hardware.costs)
        """What the decode instances know of themselves: they judge by it under `baseline`."""
        self._fetches = 0
        self._wasted_s = 0.0

    def _replication(self) -> VirtualReplication:
        assert self.settings.replication is not None
        with_pools = {prefill.node.id: prefill.node for prefill in self.prefills.values()}
        return VirtualReplication(
            Replication(self.settings.replication), self.core, with_pools, INCARNATION,
            self.settings.hardware, self.loop, self._report,
        )  # fmt: skip

    def _add_node(self, name: str, pool_tokens: int) -> VirtualNode:
        policy = EVICTION_POLICIES[self.settings.eviction]()
        blocks = max(1, pool_tokens // BLOCK_TOKENS)
        speed = self.settings.hardware.link_bytes_per_s
        self.nodes[name] = VirtualNode(name, blocks, policy, speed)
        return self.nodes[name]

    # --- one run -------------------------------------------------------------------------------
    def run(
        self, requests: Sequence[TraceRequest], on_placed: Callable[[], None] = lambda: None
    ) -> Outcome:
        for number, trace in enumerate(requests):
            keys = [key_of(block) for block in trace.blocks("served")]
            request = UnderWay(
                number, trace, keys, RequestOutcome(trace.arrival_s, trace.num_tokens)
            )
            self._requests.append(request)
            self.loop.at(trace.arrival_s, lambda one=request: self._arrive(one, on_placed))  # type: ignore[misc]
        self.loop.run()
        return Outcome(
            policy=self.settings.policy,
            requests=[request.outcome for request in self._requests],
            span_s=self.loop.now_s,
            busy_by_prefill_s={name: one.busy_s for name, one in self.prefills.items()},
            sent_bytes=sum(node.sends.bytes_total for node in self.nodes.values()),
            fetches=self._fetches,
            wasted_prefill_s=self._wasted_s,
        )

    def _arrive(self, request: UnderWay, on_placed: Callable[[], None]) -> None:
        now_s = self.loop.now_s
        if now_s >= self._reported_s + self.settings.report_every_s:
            self._report()
        trace = request.trace
        asked = PlacementRequest(
            request_id=request.handle,
            attempt=1,
            gateway="gateway",
            gateway_incarnation=INCARNATION,
            model=MODEL,
            num_tokens=trace.num_tokens,
            max_tokens=max(1, trace.output_tokens),
            chain=b"".join(request.keys),
        )
        request.asked = PlaceAsked(request.number, asked, self._matches(request.keys))
        self._feed(request.asked)
        deadline_s = self.core.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            self._feed(TimerFired())
        if self.replication is not None:
            self.replication.look()
        on_placed()

    def _matches(self, keys: Sequence[BlockKey]) -> tuple[NodeMatch, ...]:
        found = []
        if keys and self.settings.pool_tokens:
            for prefill in self.prefills.values():
                depth = prefill.node.num_leading(keys)
                if depth:
                    found.append(NodeMatch(prefill.node.id, INCARNATION, depth))
        return tuple(found)

    # --- the conductor's side ------------------------------------------------------------------
    def _feed(self, event: Event) -> None:
        for effect in self.core.on_event(event, self.loop.now_s):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case SendReserve():
                self._feed(self._reserve(effect))
            case AnswerPlaced():
                self._start(self._requests[effect.place_id], effect.decision)
            case AnswerRefused():
                request = self._requests[effect.place_id]
                request.outcome.fate = "refused"
                if request.decode:  # its promise, if it gave one
                    self._release_decode(request)
            case _:
                return

    def _reserve(self, effect: SendReserve) -> ReserveAnswered:
        request = self._requests[effect.place_id]
        expected_s = 0.0
        is_accepted = True
        if effect.role == "prefill":
            expected_s = self.prefills[effect.instance[0]].work_s(self.loop.now_s)
        else:
            decode = self.decodes[effect.instance[0]]
            is_accepted = decode.has_room(effect.request.room_tokens)
            if is_accepted:
                request.decode = decode.id
                decode.room_tokens += effect.request.room_tokens
                decode.num_promised += 1
                decode.promised_context_tokens += request.trace.num_tokens
        return ReserveAnswered(
            effect.place_id,
            effect.role,
            effect.instance,
            is_accepted,
            reason="" if is_accepted else "no room",
            expected_start_s=expected_s,
        )

    def _report(self) -> None:
        now_s = self._reported_s = self.loop.now_s
        for prefill in self.prefills.values():
            self._feed(InstanceReported(prefill_view(prefill, now_s, self._blank)))
            node = prefill.node
            backlog = max(node.sends.backlog_bytes(now_s), node.receives.backlog_bytes(now_s))
            self._feed(NodeReported((node.id, INCARNATION), backlog))
        for number, decode in enumerate(self.decodes.values()):
            self._feed(InstanceReported(decode_view(decode, f"node-d{number:03}", self._blank)))

    # --- the life of a request -----------------------------------------------------------------
    def _start(self, request: UnderWay, decision: PlacementDecision) -> None:
        request.decision = decision
        if self.replication is not None and request.asked is not None:
            asked, cost = request.asked, self.core.learnt(MODEL).cost
            miss = miss_of(asked.request, asked.matches, decision, cost)
            if miss is not None:
                self.replication.table.observe(miss, self.loop.now_s)
        now_s, winner = self.loop.now_s, decision.winner
        prefill = self.prefills[winner.prefill.id]
        outcome, num_tokens = request.outcome, request.trace.num_tokens
        outcome.prefill, outcome.predicted_ttft_s = prefill.id, decision.predicted.ttft_s
        local = prefill.node.hold(request.handle, request.keys)
        outcome.local_tokens = winner.prefill.usable_tokens(local, num_tokens)
        ready_s = self._fetch(request, prefill, local)
        cached = outcome.local_tokens + outcome.fetched_tokens
        work_s = self.settings.hardware.prefill_s(num_tokens, cached)
        ttft_slo_s = self.settings.slo.ttft_s
        waiting = Waiting(
            handle=request.handle,
            remaining_s=work_s,
            arrived_s=now_s,
            due_s=None if ttft_slo_s is None else now_s + ttft_slo_s,
            is_loaded=ready_s <= now_s,
        )
        job = PrefillJob(
            waiting, num_tokens, cached, lambda: self._prefilled(request, prefill, job)
        )
        if ready_s > now_s:
            self.loop.at(ready_s, lambda: prefill.loaded(request.handle))
        prefill.add(job)

    def _fetch(self, request: UnderWay, prefill: VirtualPrefill, local: int) -> float:
        """Starts what the placement wants fetched; when it is here."""
        now_s, decision, outcome = self.loop.now_s, request.decision, request.outcome
        assert decision is not None
        sources = [self.nodes[source.node] for source in decision.winner.sources]
        wanted = max((source.num_blocks for source in decision.winner.sources), default=0)
        if not sources or wanted <= local:
            return now_s
        keys = request.keys[:wanted]
        there = min(source.hold(request.handle, keys) for source in sources)
        with_fetch = decision.winner.prefill.usable_tokens(there, request.trace.num_tokens)
        request.held_at = sources
        if with_fetch <= outcome.local_tokens:
            return now_s
        outcome.fetched_tokens = with_fetch - outcome.local_tokens
        request.fetched_bytes = outcome.fetched_tokens * self.settings.hardware.kv_bytes_per_token
        self._fetches += 1
        base_s = self.settings.hardware.link_base_s
        ready_s = transfer(sources, prefill.node, request.fetched_bytes, now_s, base_s)
        request.fetch_s = outcome.load_s = ready_s - now_s
        self.loop.at(ready_s, lambda: self._fetched(request, prefill, with_fetch // BLOCK_TOKENS))
        return ready_s

    def _fetched(self, request: UnderWay, prefill: VirtualPrefill, num_blocks: int) -> None:
        """The copy is a replica from now on."""
        for source in request.held_at:
            source.release(request.handle)
        if self.settings.pool_tokens:
            prefill.node.store(request.handle, request.keys, num_blocks)

    def _prefilled(self, request: UnderWay, prefill: VirtualPrefill, job: PrefillJob) -> None:
        now_s, outcome, hardware = self.loop.now_s, request.outcome, self.settings.hardware
        assert job.started_s is not None
        outcome.queue_s = job.started_s - outcome.arrival_s
        outcome.compute_s = hardware.prefill_s(job.num_tokens, job.cached_tokens)
        outcome.ttft_s = now_s - outcome.arrival_s
        request.token0_s = now_s
        if self.settings.pool_tokens:
            prefill.node.store(request.handle, request.keys, len(request.keys))
        prefill.node.release(request.handle)
        if self._is_refused_by_decode(request):
            outcome.fate = "refused_after_prefill"
            self._wasted_s += outcome.compute_s
            self._release_decode(request)
            return
        # Layers followed the compute: what is left to send is what the link did not keep up with.
        decode_node = self.nodes["node-d" + request.decode.removeprefix("decode-")]
        num_bytes = job.num_tokens * hardware.kv_bytes_per_token
        began_s = now_s - outcome.compute_s
        ends_s = transfer([prefill.node], decode_node, num_bytes, began_s, hardware.link_base_s)
        outcome.handoff_s = max(0.0, ends_s - now_s)
        self.loop.at(ends_s, lambda: self._join(request))

    def _is_refused_by_decode(self, request: UnderWay) -> bool:
        """Under `baseline` the decode instance looks at its batch when the prefill is done."""
        if self.settings.admission != "baseline":
            return False
        decode = self.decodes[request.decode]
        step_s = self._decode_cost.decode_step_s(
            decode.running + 1, decode.context_tokens + request.trace.num_tokens
        )
        request.joined_step_s = step_s / self._decode_cost.decode_scale
        return is_decode_over(step_s, self.settings.slo)

    def _join(self, request: UnderWay) -> None:
        tokens = request.trace.output_tokens - 1
        if tokens < 1:
            self._finish(request, 0.0)
            return
        request.is_joined = True
        self.decodes[request.decode].promised_context_tokens -= request.trace.num_tokens
        self.decodes[request.decode].join(
            request.trace.num_tokens,
            tokens,
            request.token0_s,
            lambda tbt_s: self._finish(request, tbt_s),
        )

    def _finish(self, request: UnderWay, tbt_s: float) -> None:
        request.outcome.tbt_s = tbt_s
        self._release_decode(request)
        decision, outcome = request.decision, request.outcome
        if not self.settings.is_learning or decision is None:
            return
        self._decode_cost.learn_step(tbt_s, request.joined_step_s)
        self._feed(
            BillFinished(
                model=MODEL,
                num_tokens=outcome.num_tokens,
                cached_tokens=outcome.local_tokens + outcome.fetched_tokens,
                compute_s=outcome.compute_s,
                fetched_bytes=request.fetched_bytes,
                fetch_s=request.fetch_s,
                tbt_s=tbt_s,
                decode_s=self.loop.now_s - request.token0_s,
                output_tokens=request.trace.output_tokens,
                predicted=decision.predicted,
                ttft_s=outcome.ttft_s,
            )
        )

    def _release_decode(self, request: UnderWay) -> None:
        decode = self.decodes[request.decode]
        decode.room_tokens -= request.trace.num_tokens + max(1, request.trace.output_tokens)
        decode.num_promised -= 1
        if not request.is_joined:
            decode.promised_context_tokens -= request.trace.num_tokens
