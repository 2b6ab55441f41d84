"""A cluster in virtual time around the real conductor: a thin driver of its core.

Requests arrive, the core decides, virtual instances answer its reservations; blocks are found in
the nodes' real pools. Decides nothing that the conductor decides.
"""

import random
from collections.abc import Callable, Sequence

from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.decode_judge import BatchNow, DecodeJudge
from shared.scheduling.effects import AnswerPlaced, AnswerRefused, Effect, SendReserve
from shared.scheduling.events import BillFinished, Event, PlaceAsked, ReserveAnswered, TimerFired
from shared.scheduling.queue_discipline import Waiting
from shared.scheduling.replication import Replication, miss_of
from shared.scheduling.slo import Slo
from shared.scheduling.vocabulary import PlacementDecision, PlacementRequest, PredictedTimes
from shared.simulator.computing import Computing, ComputingPrompts
from shared.simulator.event_loop import EventLoop
from shared.simulator.machines import INCARNATION, MODEL, Machines
from shared.simulator.outcome import Outcome, RequestOutcome
from shared.simulator.prefix_pool import key_of
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest
from shared.simulator.under_way import UnderWay
from shared.simulator.virtual_node import transfer
from shared.simulator.virtual_prefill import PrefillJob, VirtualPrefill
from shared.simulator.virtual_replication import VirtualReplication

NEVER_S = 1e12


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
        self.machines = Machines(settings, self.loop)
        self._computing = None if settings.sites is None else ComputingPrompts(INCARNATION)
        self._reported_s: float = -NEVER_S
        self.replication = None if settings.replication is None else self._replication()
        self._requests: list[UnderWay] = []
        self._judge = DecodeJudge(hardware.costs, self.core.settings.decode_time_s)
        """What the decode instances know of themselves."""
        self._fetches = 0
        self._wasted_s = 0.0

    def _replication(self) -> VirtualReplication:
        assert self.settings.replication is not None
        return VirtualReplication(
            Replication(self.settings.replication), self.core, self.machines.with_pools,
            INCARNATION, self.settings.hardware, self.loop, self._report,
        )  # fmt: skip

    # --- one run -------------------------------------------------------------------------------
    def run(
        self, requests: Sequence[TraceRequest], on_placed: Callable[[], None] = lambda: None
    ) -> Outcome:
        for number, trace in enumerate(requests):
            shared = trace.num_tokens // self.settings.grid_tokens * self.settings.grid_tokens
            keys = [key_of(block) for block in trace.block_ids[: shared // BLOCK_TOKENS]]
            request = UnderWay(
                number, trace, keys, RequestOutcome(trace.arrival_s, trace.num_tokens)
            )
            self._requests.append(request)
            at_s = trace.arrival_s + self.settings.hardware.request_s
            self.loop.at(at_s, lambda one=request: self._arrive(one, on_placed))  # type: ignore[misc]
        self.loop.run()
        return Outcome(
            policy=self.settings.policy,
            requests=[request.outcome for request in self._requests],
            span_s=self.loop.now_s,
            busy_by_prefill_s={name: one.busy_s for name, one in self.machines.prefills.items()},
            sent_bytes=sum(node.sends.bytes_total for node in self.machines.nodes.values()),
            fetches=self._fetches,
            wasted_prefill_s=self._wasted_s,
        )

    def _arrive(self, request: UnderWay, on_placed: Callable[[], None]) -> None:
        now_s = self.loop.now_s
        if now_s >= self._reported_s + self.settings.report_every_s:
            self._report()
        trace, chain = request.trace, b"".join(request.keys)
        asked = PlacementRequest(
            request_id=request.handle,
            attempt=1,
            gateway="gateway",
            gateway_incarnation=INCARNATION,
            model=MODEL,
            num_tokens=trace.num_tokens,
            max_tokens=max(1, trace.output_tokens),
            chain=chain,
            expected=() if self._computing is None else self._computing.expected(chain, now_s),
        )
        matches = self.machines.matches(request.keys) if self.settings.pool_tokens else ()
        request.asked = PlaceAsked(request.number, asked, matches)
        self._feed(request.asked)
        deadline_s = self.core.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            self._feed(TimerFired())
        if self.replication is not None:
            self.replication.look()
        on_placed()

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
            request.judged_tbt_s = effect.judged_tbt_s
            work_s = self.settings.hardware.prefill_s(
                request.trace.num_tokens, effect.cached_tokens
            )
            prefill = self.machines.prefills[effect.instance[0]]
            expected_s = prefill.wait_s(work_s, self.loop.now_s)
        else:
            decode = self.machines.decodes[effect.instance[0]]
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
        for event in self.machines.reports(now_s):
            self._feed(event)

    # --- the life of a request -----------------------------------------------------------------
    def _start(self, request: UnderWay, decision: PlacementDecision) -> None:
        request.decision = decision
        if self.replication is not None and request.asked is not None:
            asked, cost = request.asked, self.core.learnt(MODEL).cost
            miss = miss_of(asked.request, asked.matches, decision, cost)
            if miss is not None:
                self.replication.table.observe(miss, self.loop.now_s)
        now_s, winner = self.loop.now_s, decision.winner
        prefill = self.machines.prefills[winner.prefill.id]
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
        if self._computing is not None and request.asked is not None:
            job.find_cached = lambda: self._look_again(request, prefill)
            job.on_chunk = lambda tokens: self._publish(request, prefill, tokens)
            start_s = now_s + decision.predicted.queue_s
            computing = Computing(
                prefill.id, request.asked.request.chain, cached // BLOCK_TOKENS, start_s,
                start_s + work_s,
            )  # fmt: skip
            self._computing.began(request.handle, computing)
        if ready_s > now_s:
            self.loop.at(ready_s, lambda: prefill.loaded(request.handle))
        prefill.add(job)

    def _fetch(self, request: UnderWay, prefill: VirtualPrefill, local: int) -> float:
        """Starts what the placement wants fetched; when it is here."""
        now_s, decision, outcome = self.loop.now_s, request.decision, request.outcome
        assert decision is not None
        sources = [self.machines.nodes[source.node] for source in decision.winner.sources]
        wanted = max((source.num_blocks for source in decision.winner.sources), default=0)
        if not sources or wanted <= local:
            return now_s
        keys = request.keys[:wanted]
        there = min(source.hold(request.handle, keys) for source in sources)
        with_fetch = decision.winner.prefill.usable_tokens(there, request.trace.num_tokens)
        request.held_at = sources
        if with_fetch <= outcome.local_tokens:
            self._let_go(request)
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
        self._let_go(request)
        if self.settings.pool_tokens:
            prefill.node.store(request.handle, request.keys, num_blocks)

    def _let_go(self, request: UnderWay) -> None:
        for source in request.held_at:
            source.release(request.handle)
        request.held_at = []

    def _look_again(self, request: UnderWay, prefill: VirtualPrefill) -> int:
        """In its turn: what others have computed of it meanwhile is used too."""
        outcome, decision = request.outcome, request.decision
        assert decision is not None
        there = prefill.node.hold(request.handle, request.keys)
        usable = decision.winner.prefill.usable_tokens(there, request.trace.num_tokens)
        outcome.local_tokens = max(outcome.local_tokens, usable - outcome.fetched_tokens)
        return outcome.local_tokens + outcome.fetched_tokens

    def _publish(self, request: UnderWay, prefill: VirtualPrefill, num_tokens: int) -> None:
        """So many tokens of it are computed: whole grid chunks can be read."""
        grid = self.settings.grid_tokens
        num_blocks = min(num_tokens // grid * grid // BLOCK_TOKENS, len(request.keys))
        prefill.node.store(request.handle, request.keys, num_blocks)
        if self._computing is not None and request.asked is not None:
            chain = request.asked.request.chain
            self._computing.computed(request.handle, chain, num_blocks, self.loop.now_s)

    def _prefilled(self, request: UnderWay, prefill: VirtualPrefill, job: PrefillJob) -> None:
        now_s, outcome, hardware = self.loop.now_s, request.outcome, self.settings.hardware
        assert job.started_s is not None
        outcome.queue_s = job.started_s - outcome.arrival_s - hardware.request_s
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
        if self._computing is not None and request.asked is not None:
            self._computing.ended(request.handle, request.asked.request.chain)
        self._hand_over(request, prefill)

    def _hand_over(self, request: UnderWay, prefill: VirtualPrefill) -> None:
        """Layers followed the compute: what is left to send is what the link did not keep up with.

        On one node nothing moves; a node with a pool has what it has, and keeps what comes."""
        now_s, outcome, hardware = self.loop.now_s, request.outcome, self.settings.hardware
        node = self.machines.node_of_decode[request.decode]
        if node is prefill.node:
            self._join(request)
            return
        keys = request.keys if node.id in self.machines.with_pools else []
        missing = request.trace.num_tokens - node.hold(request.handle, keys) * BLOCK_TOKENS
        num_bytes = missing * hardware.kv_bytes_per_token
        began_s = now_s - outcome.compute_s
        ends_s = transfer([prefill.node], node, num_bytes, began_s, hardware.link_base_s)
        outcome.handoff_s = max(0.0, ends_s - now_s)

        def arrived() -> None:
            if keys:
                node.store(request.handle, keys, len(keys))
                node.release(request.handle)
            self._join(request)

        self.loop.at(ends_s, arrived)

    def _is_refused_by_decode(self, request: UnderWay) -> bool:
        """Under `baseline` the decode instance looks at its batch when the prefill is done."""
        if request.judged_tbt_s is None:
            return False
        decode = self.machines.decodes[request.decode]
        batch = BatchNow(decode.running, decode.context_tokens)
        allowed = Slo(tbt_s=request.judged_tbt_s)
        verdict = self._judge.judge(batch, request.trace.num_tokens, allowed)
        request.joined_step_s = verdict.prior_step_s
        return verdict.refusal is not None

    def _join(self, request: UnderWay) -> None:
        tokens = request.trace.output_tokens - 1
        if tokens < 1:
            self._finish(request, 0.0)
            return
        request.is_joined = True
        self.machines.decodes[request.decode].promised_context_tokens -= request.trace.num_tokens
        self.machines.decodes[request.decode].join(
            request.trace.num_tokens,
            tokens,
            request.token0_s,
            lambda tbt_s: self._finish(request, tbt_s),
        )

    def _finish(self, request: UnderWay, tbt_s: float) -> None:
        request.outcome.tbt_s = tbt_s
        request.outcome.decode_s = self.loop.now_s - request.token0_s
        request.outcome.output_tokens = request.trace.output_tokens
        self._release_decode(request)
        decision, outcome = request.decision, request.outcome
        if not self.settings.is_learning or decision is None:
            return
        self._judge.learn(tbt_s, request.joined_step_s, outcome.decode_s)
        self._feed(
            BillFinished(
                model=MODEL,
                num_tokens=outcome.num_tokens,
                cached_tokens=outcome.local_tokens + outcome.fetched_tokens,
                compute_s=outcome.compute_s,
                fetched_bytes=request.fetched_bytes,
                fetch_s=request.fetch_s,
                tbt_s=tbt_s,
                decode_s=outcome.decode_s,
                output_tokens=request.trace.output_tokens,
                predicted=decision.predicted,
                real=PredictedTimes(
                    outcome.queue_s,
                    outcome.load_s,
                    outcome.compute_s,
                    outcome.handoff_s,
                    tbt_s,
                    outcome.ttft_s - max(outcome.queue_s, outcome.load_s) - outcome.compute_s,
                ),
                ttft_s=outcome.ttft_s,
            )
        )

    def _release_decode(self, request: UnderWay) -> None:
        decode = self.machines.decodes[request.decode]
        decode.room_tokens -= request.trace.num_tokens + max(1, request.trace.output_tokens)
        decode.num_promised -= 1
        if not request.is_joined:
            decode.promised_context_tokens -= request.trace.num_tokens
