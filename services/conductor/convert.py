"""Between the wire and the words of the core, both ways. No decisions."""

from collections.abc import Iterable, Mapping, Sequence

from shared.decisions.refusals import error_info, targets_of
from shared.messages.bill import FinishedBill, Times
from shared.messages.common import (
    FetchSource,
    InstanceRef,
    NodeRef,
    Replica,
    RequestRef,
    Targets,
)
from shared.messages.conductor import Candidate as WireCandidate
from shared.messages.conductor import Placement, PlaceReply, PlaceRequest, PredictionError
from shared.messages.index import MatchReply
from shared.messages.outcomes import KeptOutParty, Outcomes
from shared.messages.prefill import Cancel, Reserve
from shared.messages.reports import InstanceReport
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.effects import AnswerRefused, SendRelease, SendReserve
from shared.scheduling.events import BillFinished, OutcomeSeen
from shared.scheduling.prediction_error import ErrorSummary
from shared.scheduling.quarantine import KeptOut, Outcome
from shared.scheduling.slo import NO_SLO, Slo
from shared.scheduling.vocabulary import (
    Candidate,
    ExpectedPrefix,
    InstanceAddress,
    InstanceView,
    NodeMatch,
    PlacementDecision,
    PlacementRequest,
    PredictedTimes,
    Source,
)


# --- in ----------------------------------------------------------------------------------------
def view_of(report: InstanceReport) -> InstanceView:
    return InstanceView(
        role=report.service,
        id=report.id,
        incarnation=report.incarnation,
        node=report.node,
        node_incarnation=report.node_incarnation,
        state=report.state,
        model=report.model,
        root=report.root,
        kv_format=report.kv_format,
        block_tokens=max(report.block_tokens, 1),
        grid_tokens=max(report.grid_tokens, report.block_tokens, 1),
        block_bytes=report.block_bytes,
        context_tokens=report.context_tokens,
        queued_requests=report.queued_requests,
        queued_tokens=report.queued_tokens,
        running=report.running,
        free_tokens=report.free_tokens,
        capacity_tokens=report.capacity_tokens,
        context_in_batch_tokens=report.context_in_batch_tokens,
        admit_tokens=report.admit_tokens,
        expected_start_s=report.expected_start_s,
        discipline=report.discipline,
        work_by_size_s=tuple(report.work_by_size_s),
        prompts_by_size=tuple(report.prompts_by_size),
    )


def request_of(message: PlaceRequest, found: MatchReply) -> PlacementRequest:
    return PlacementRequest(
        request_id=message.ref.request_id,
        attempt=message.ref.attempt,
        gateway=message.ref.gateway,
        gateway_incarnation=message.ref.gateway_incarnation,
        model=message.model,
        num_tokens=message.num_tokens,
        max_tokens=message.max_tokens,
        chain=message.chain,
        use_cache=message.cache == "on",
        publishes=message.cache != "off",
        needs_decode=message.max_tokens > 1 or message.decode is not None,
        exclude=tuple(message.exclude),
        prefill=message.prefill,
        decode=message.decode,
        policy=message.policy,
        remaining_s=message.remaining_ms / 1e3,
        slo=slo_of_ms(message.ttft_slo_ms, message.tbt_slo_ms),
        priority=message.priority,
        has_run=bool(message.run),
        expected=tuple(
            ExpectedPrefix(
                (one.instance.id, one.instance.incarnation), one.num_blocks, one.eta_ms / 1e3
            )
            for one in found.expected
        ),
    )


def matches_of(reply: MatchReply) -> tuple[NodeMatch, ...]:
    return tuple(
        NodeMatch(
            node=match.node.id,
            incarnation=match.node.incarnation,
            num_blocks=match.num_blocks,
            disk_blocks=max(0, match.num_blocks - match.dram_blocks),
        )
        for match in reply.nodes
    )


def bill_of(message: FinishedBill) -> BillFinished:
    reuse, real = message.reuse, unscored(message.real)
    return BillFinished(
        model=message.model,
        num_tokens=reuse.prompt_tokens,
        cached_tokens=reuse.cached_tokens,
        compute_s=real.compute_s,
        fetched_bytes=reuse.fetched_bytes,
        fetch_s=reuse.fetch_s,
        disk_bytes=reuse.disk_bytes,
        disk_s=reuse.disk_s,
        streamed_bytes=reuse.streamed_bytes,
        stream_s=reuse.stream_s,
        tbt_s=real.tbt_s,
        predicted=_predicted(message.predicted),
        real=_predicted(real),
        decode_s=message.decode_s,
        ttft_s=real.ttft_s,
        output_tokens=message.output_tokens,
    )


def unscored(real: Times) -> Times:
    """As if the log probabilities of the prompt had not been asked for: nobody predicts them."""
    return real.model_copy(
        update={
            "compute_s": max(real.compute_s - real.score_s, 0.0),
            "ttft_s": max(real.ttft_s - real.score_s, 0.0),
        }
    )


def outcomes_of(message: FinishedBill, prefill_s: float) -> list[OutcomeSeen]:
    """What a request that went well says of its instances; `prefill_s` as the model has it."""
    real, predicted = unscored(message.real), message.predicted
    took_s = real.compute_s
    if (
        message.attempts == 1 and real.overhead_s > 0
    ):  # as its gateway saw it, whatever the instance says of itself;
        # without overhead it waited for a place
        took_s = max(took_s, real.ttft_s - real.queue_s - real.load_s)
    prefill = Outcome(message.prefill.node, True, took_s, prefill_s)
    seen = [OutcomeSeen("prefill", (message.prefill.id, message.prefill.incarnation), prefill)]
    if message.decode is None:
        return seen
    # One token has no time between tokens.
    expected_s = predicted.tbt_s if message.output_tokens > 1 else 0.0
    decode = Outcome(message.decode.node, True, real.tbt_s, expected_s)
    own = (message.decode.id, message.decode.incarnation)
    return [*seen, OutcomeSeen("decode", own, decode)]


def outcomes_seen(message: Outcomes) -> list[OutcomeSeen]:
    return [
        OutcomeSeen(
            service=item.service,
            party=(item.id, item.incarnation),
            outcome=Outcome(message.witness, item.is_good, item.took_s, item.expected_s),
        )
        for item in message.items
    ]


def _predicted(times: Times) -> PredictedTimes:
    return PredictedTimes(
        queue_s=times.queue_s,
        load_s=times.load_s,
        compute_s=times.compute_s,
        overhead_s=times.overhead_s,
        handoff_s=times.handoff_s,
        tbt_s=times.tbt_s,
        tbt_scale=times.tbt_scale,
    )


def slo_of_ms(ttft_ms: float | None, tbt_ms: float | None) -> Slo:
    return Slo(None if ttft_ms is None else ttft_ms / 1e3, None if tbt_ms is None else tbt_ms / 1e3)


# --- out ---------------------------------------------------------------------------------------
def ref_of(request: PlacementRequest) -> RequestRef:
    return RequestRef(
        request_id=request.request_id,
        attempt=request.attempt,
        gateway=request.gateway,
        gateway_incarnation=request.gateway_incarnation,
    )


def reserve_of(effect: SendReserve, traceparent: str, run: bytes = b"") -> Reserve:
    """`run`: as its gateway packed it; of use to a prefill instance only."""
    request, decode = effect.request, effect.decode
    return Reserve(
        ref=ref_of(request),
        incarnation=effect.instance[1],
        num_tokens=request.num_tokens,
        max_tokens=request.max_tokens,
        cached_tokens=effect.cached_tokens,
        chain=request.chain if effect.role == "prefill" else b"",
        source=_sources(effect.sources),
        cache="on" if request.use_cache else "write" if request.publishes else "off",
        ttl_ms=int(effect.ttl_s * 1e3),
        ttft_slo_ms=None if effect.ttft_slo_s is None else effect.ttft_slo_s * 1e3,
        # One that decode judges waits for its gateway, which tells decode of it, too.
        run=run if effect.role == "prefill" and effect.judged_tbt_s is None else b"",
        decode=None if decode is None else _instance(decode),
        remaining_ms=int(request.remaining_s * 1e3),
        judged_tbt_ms=None if effect.judged_tbt_s is None else effect.judged_tbt_s * 1e3,
        traceparent=traceparent,
    )


def cancel_of(effect: SendRelease) -> Cancel:
    return Cancel(ref=ref_of(effect.request))


def told_of(reply: PlaceReply) -> dict[str, str | int | float | bool]:
    """What a trace says of a decision."""
    if reply.placement is None:
        return {} if reply.refusal is None else {"refusal": str(reply.refusal.code)}
    placement = reply.placement
    return {
        "policy": placement.policy,
        "prefill": placement.prefill.id,
        "decode": "" if placement.decode is None else placement.decode.id,
        "local_blocks": placement.local_blocks,
        "predicted_ttft_s": placement.predicted.ttft_s,
    }


def placed_reply(decision: PlacementDecision) -> PlaceReply:
    winner = decision.winner
    local_tokens, remote_tokens = _reused(winner)
    placement = Placement(
        prefill=_instance(winner.prefill),
        decode=None if decision.decode is None else _instance(decision.decode),
        local_blocks=winner.local_blocks,
        source=_sources(winner.sources),
        decode_source=_sources([decision.decode_source] if decision.decode_source else []),
        local_tokens=local_tokens,
        remote_tokens=remote_tokens,
        predicted=_times(decision.predicted),
        cost=winner.cost_s,
        policy=decision.policy,
        is_started=decision.is_started,
    )
    return PlaceReply(
        placement=placement,
        losers=[_candidate(loser) for loser in decision.losers],
        counts=dict(decision.counts),
    )


def refused_reply(effect: AnswerRefused) -> PlaceReply:
    refusal = effect.refusal
    return PlaceReply(
        refusal=error_info(refusal), targets=targets_of(refusal), counts=dict(effect.counts)
    )


def errors_of(summary: Mapping[str, ErrorSummary]) -> dict[str, PredictionError]:
    return {
        name: PredictionError(
            num_requests=one.num_requests, p50=one.p50, p90=one.p90, bias=one.bias
        )
        for name, one in summary.items()
    }


def slos_of(settings: CoreSettings, models: Iterable[str]) -> dict[str, Targets]:
    """The deployment's own targets of those models that have any."""
    found = {
        model: settings.slo.and_also(settings.model_slos.get(model, NO_SLO)) for model in models
    }
    return {
        model: Targets(allowed_ttft_s=slo.ttft_s, allowed_tbt_s=slo.tbt_s)
        for model, slo in found.items()
        if slo != NO_SLO
    }


def _candidate(candidate: Candidate) -> WireCandidate:
    local_tokens, remote_tokens = _reused(candidate)
    return WireCandidate(
        prefill=_instance(candidate.prefill),
        local_blocks=candidate.local_blocks,
        remote_blocks=candidate.remote_blocks,
        local_tokens=local_tokens,
        remote_tokens=remote_tokens,
        predicted=_times(candidate.predicted),
        cost=candidate.cost_s,
        reason=candidate.reason,
    )


def _reused(candidate: Candidate) -> tuple[int, int]:
    """Tokens from its own node and from others."""
    held = candidate.local_blocks * candidate.prefill.block_tokens
    local_tokens = min(held, candidate.cached_tokens)
    return local_tokens, candidate.cached_tokens - local_tokens


def _instance(view: InstanceView | InstanceAddress) -> InstanceRef:
    return InstanceRef(id=view.id, incarnation=view.incarnation, node=view.node)


def _sources(sources: Sequence[Source]) -> FetchSource | None:
    """The first, with the others in it."""
    if not sources:
        return None
    first, *others = (
        Replica(
            node=NodeRef(id=source.node, incarnation=source.incarnation),
            num_blocks=source.num_blocks,
        )
        for source in sources
    )
    return FetchSource(node=first.node, num_blocks=first.num_blocks, others=others)


def kept_out_of(kept: Sequence[KeptOut], now_s: float) -> list[KeptOutParty]:
    return [
        KeptOutParty(
            service=one.party[0],
            id=one.party[1],
            incarnation=one.party[2],
            reason=one.reason,
            state=one.state,
            since_s=now_s - one.since_s,
            left_s=max(0.0, one.until_s - now_s),
            num_times=one.num_times,
        )
        for one in kept
    ]


def _times(times: PredictedTimes) -> Times:
    return Times(
        queue_s=times.queue_s,
        load_s=times.load_s,
        compute_s=times.compute_s,
        overhead_s=times.overhead_s,
        handoff_s=times.handoff_s,
        ttft_s=times.ttft_s,
        tbt_s=times.tbt_s,
        tbt_scale=times.tbt_scale,
    )
