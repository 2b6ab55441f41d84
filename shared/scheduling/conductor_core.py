"""The conductor's whole decision machine, sans I/O: events and the time in, effects out.

Owns the view of instances, placements until both promises stand (and what they bring until it
shows in reports), and the cost models. Never: phases, retries or leases of requests.

A placement asks a prefill and, where it needs one, a decode instance at once.
The one that refuses is replaced by the next best, the other's promise is kept; when nobody is left
the kept promise is given back.
"""

import copy
import heapq
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from shared.scheduling import admission
from shared.scheduling.admission import judged_after_prefill
from shared.scheduling.cluster_view import ClusterView, Promise
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.cost_model import CostModel
from shared.scheduling.decode_forecast import DecodeForecast
from shared.scheduling.effects import (
    AnswerPlaced,
    AnswerRefused,
    Effect,
    SendRelease,
    SendReserve,
)
from shared.scheduling.events import (
    AskedElsewhere,
    BillFinished,
    Event,
    InstanceLost,
    InstanceReported,
    NodeReported,
    OutcomeSeen,
    PlaceAsked,
    ReserveAnswered,
    ReserveFailed,
    TimerFired,
)
from shared.scheduling.fetching import count_fetch
from shared.scheduling.learning import Learnt
from shared.scheduling.open_placement import OpenPlacement, Side
from shared.scheduling.placement import (
    Surroundings,
    choose_decode,
    decide,
    judge,
    rank_prefills,
)
from shared.scheduling.policies.base import PlacementPolicy
from shared.scheduling.policies.registry import POLICIES
from shared.scheduling.prediction_error import ErrorSummary
from shared.scheduling.slo import NO_SLO, Slo
from shared.scheduling.vocabulary import (
    InstanceKey,
    InstanceView,
    NodeMatch,
    PlacementDecision,
    PlacementRequest,
    Refusal,
    Role,
)

MAX_GIVEN_UP = 1_024


class ConductorCore:
    def __init__(self, settings: CoreSettings, rng: random.Random) -> None:
        if settings.policy not in POLICIES:
            raise ValueError(f"policy: {settings.policy!r} is none of {', '.join(POLICIES)}")
        if settings.admission not in admission.ADMISSION_RULES:
            known = ", ".join(admission.ADMISSION_RULES)
            raise ValueError(f"admission: {settings.admission!r} is none of {known}")
        self.settings = settings
        self.view = ClusterView(settings.lease_s)
        self._rng = rng
        self._policies: dict[str, PlacementPolicy] = {}
        self._learnt: dict[str, Learnt] = {}
        self._open: dict[int, OpenPlacement] = {}
        self._deadlines: list[tuple[float, int]] = []
        """A heap of (deadline, place_id); those that were answered since drop out at the top."""
        self._given_up: dict[int, PlacementRequest] = {}

    # --- the machine ---------------------------------------------------------------------------
    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        """Mutates; deterministic in (events, times, rng)."""
        match event:
            case PlaceAsked():
                return self._on_asked(event, now_s)
            case ReserveAnswered():
                return self._on_answered(event, now_s)
            case ReserveFailed():
                return self._on_failed(event, now_s)
            case InstanceReported():
                self._hear(event.instance, now_s)
            case NodeReported():
                self.view.nodes.report(event.node, event.bytes_in_flight, now_s)
            case InstanceLost():
                self.view.lose(event.role, event.instance)
            case AskedElsewhere():
                self.view.hear_asked(event, self.learnt(event.model).cost, now_s)
            case BillFinished():
                self.learnt(event.model).learn(event)
            case OutcomeSeen():
                self.view.quarantine.note((event.service, *event.party), event.outcome, now_s)
            case TimerFired():
                return self._on_timer(now_s)
            case _:
                assert_never(event)
        return []

    def next_deadline_s(self) -> float | None:
        while self._deadlines and self._deadlines[0][1] not in self._open:
            heapq.heappop(self._deadlines)
        times = (
            self._deadlines[0][0] if self._deadlines else None,
            self.view.next_deadline_s(),
        )
        return min((time_s for time_s in times if time_s is not None), default=None)

    def explain(
        self, request: PlacementRequest, matches: Sequence[NodeMatch], now_s: float
    ) -> PlacementDecision | Refusal:
        """What would be decided now; changes nothing, promises nothing."""
        refusal = admission.refuse_request(request, self.view, POLICIES)
        if refusal is not None:
            return refusal
        policy = copy.deepcopy(self._policy(request))
        around = replace(self._around(request, now_s), rng=random.Random(0))
        ranking = rank_prefills(request, matches, policy, around, num_losers=None)
        if isinstance(ranking, Refusal):
            return ranking
        winner = ranking.winner
        decode = choose_decode(request, winner, around)
        if isinstance(decode, Refusal):
            return decode
        slow = judge(request, winner, decode, around)
        if slow is not None:
            return slow
        return decide(request, ranking, winner, decode, policy.name, around)

    def prediction_errors(self) -> dict[str, dict[str, ErrorSummary]]:
        """By model and component; of models that anything is known about."""
        found = {model: learnt.errors.summary() for model, learnt in self._learnt.items()}
        return {model: summary for model, summary in sorted(found.items()) if summary}

    def check_integrity(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self.view.check_integrity()
        for place_id, place in self._open.items():
            assert place.place_id == place_id, "under a wrong id"
            assert place.sides, "a placement waits for nobody"
            assert any(not side.is_accepted for side in place.sides.values()), "not answered"
            assert place.winner is not None, "a placement without a winner"
            for side in place.sides.values():
                assert side.key not in place.refused, "an instance that refused is asked"

    # --- placing -------------------------------------------------------------------------------
    def _on_asked(self, event: PlaceAsked, now_s: float) -> list[Effect]:
        request = event.request
        refusal = admission.refuse_request(request, self.view, POLICIES)
        if refusal is not None:
            return [AnswerRefused(event.place_id, refusal)]
        place = OpenPlacement(
            place_id=event.place_id,
            request=request,
            matches=event.matches if request.use_cache else (),
            policy=self._policy(request),
            allowed=self._allowed(request),
            deadline_s=now_s + min(request.remaining_s, self.settings.place_timeout_s),
        )
        return self._ask(place, now_s)

    def _ask(self, place: OpenPlacement, now_s: float) -> list[Effect]:
        """Choose and ask whoever is missing; nobody is asked when one role has nobody."""
        around = self._around(place.request, now_s, place)
        if "prefill" not in place.sides:
            kept = self._kept_decode(place)
            root = None if kept is None else kept.root
            ranking = rank_prefills(place.request, place.matches, place.policy, around, root)
            if isinstance(ranking, Refusal):
                return self._refuse(place, ranking)
            place.ranking, place.winner = ranking, ranking.winner
        assert place.winner is not None
        decode = self._kept_decode(place)
        if decode is None:
            chosen = choose_decode(place.request, place.winner, around)
            if isinstance(chosen, Refusal):
                return self._refuse(place, chosen)
            decode = chosen
        slow = judge(place.request, place.winner, decode, around)
        if slow is not None:
            return self._refuse(place, slow)
        if place.num_asks >= self.settings.max_asks:
            return self._refuse(place, place.overloaded("too many instances refused"))
        if place.place_id not in self._open:
            self._open[place.place_id] = place
            heapq.heappush(self._deadlines, (place.deadline_s, place.place_id))
        effects: list[Effect] = []
        if "prefill" not in place.sides:
            key = place.winner.prefill.key
            effects.append(self._reserve(place, "prefill", key, now_s, hands_over_to=decode))
        if decode is not None and "decode" not in place.sides:
            effects.append(self._reserve(place, "decode", decode.key, now_s))
        return effects

    def _kept_decode(self, place: OpenPlacement) -> InstanceView | None:
        """The decode instance that was asked already: the placement is tied to its format."""
        side = place.sides.get("decode")
        seen = None if side is None else self.view.find("decode", side.key)
        return None if seen is None else seen.view

    def _reserve(
        self,
        place: OpenPlacement,
        role: Role,
        key: InstanceKey,
        now_s: float,
        *,
        hands_over_to: InstanceView | None = None,
    ) -> SendReserve:
        winner = place.winner
        assert winner is not None
        request = place.request
        decode = None
        if request.has_run and hands_over_to is not None:
            decode = hands_over_to.address
        place.sides[role] = Side(key, decode=decode)
        place.num_asks += 1
        promise = Promise(
            compute_s=winner.predicted.compute_s if role == "prefill" else 0.0,
            tokens=request.num_tokens,
            room_tokens=self.view.room_tokens(role, key, request),
            compute_tokens=request.num_tokens - winner.cached_tokens if role == "prefill" else 0,
            ends_s=now_s + self.settings.promise_ttl_s,
        )
        self.view.promise(role, key, place.place_id, promise)
        self.view.began(role, key, now_s)
        if role == "prefill":
            count_fetch(self.view.nodes, request, winner, now_s, self.learnt(request.model).cost)
        return SendReserve(
            place_id=place.place_id,
            role=role,
            instance=key,
            request=request,
            cached_tokens=winner.cached_tokens,
            sources=winner.sources if role == "prefill" else (),
            ttl_s=self.settings.promise_ttl_s,
            ttft_slo_s=place.allowed.ttft_s,
            decode=decode,
            judged_tbt_s=judged_after_prefill(role, place.allowed, self.settings.admission),
            reason=f"{place.policy.name}: cost {winner.cost_s:.3f} s",
        )

    def _on_answered(self, event: ReserveAnswered, now_s: float) -> list[Effect]:
        place = self._open.get(event.place_id)
        side = None if place is None else place.sides.get(event.role)
        if place is None or side is None or side.key != event.instance:
            # Too late to be of use. The release that was sent may have overtaken the promise.
            request = self._given_up.get(event.place_id) if place is None else place.request
            if not event.is_accepted or request is None:
                return []
            return [SendRelease(event.place_id, event.role, event.instance, request, "too late")]
        if event.is_accepted:
            self.view.answered(event.role, side.key, place.place_id)
            side.is_accepted, side.has_run = True, event.has_run
            side.expected_start_s = event.expected_start_s
            return self._answer(place, now_s)
        if event.retry_after_s is not None:
            known = place.retry_after_s
            place.retry_after_s = min(event.retry_after_s, known or event.retry_after_s)
        return self._replace_side(place, event.role, now_s)

    def _on_failed(self, event: ReserveFailed, now_s: float) -> list[Effect]:
        if event.is_gone:
            self.view.lose(event.role, event.instance)
        else:
            self.view.suspect(event.role, event.instance)
        place = self._open.get(event.place_id)
        side = None if place is None else place.sides.get(event.role)
        if place is None or side is None or side.key != event.instance:
            return []
        effects: list[Effect] = []
        if not event.is_gone:
            effects.append(place.release(event.role, side.key, "no answer in time"))
        return effects + self._replace_side(place, event.role, now_s)

    def _replace_side(self, place: OpenPlacement, role: Role, now_s: float) -> list[Effect]:
        side = place.sides.pop(role)
        self.view.withdraw(role, side.key, place.place_id)
        place.refused.add(side.key)
        if now_s >= place.deadline_s:
            return self._refuse(place, place.overloaded("the time to place it is over"))
        return self._ask(place, now_s)

    def _answer(self, place: OpenPlacement, now_s: float) -> list[Effect]:
        sides = place.sides
        needs_decode = place.request.needs_decode
        if len(sides) < 1 + needs_decode or not all(side.is_accepted for side in sides.values()):
            return []
        assert place.ranking is not None
        assert place.winner is not None
        decode = self._kept_decode(place)
        if decode is None and needs_decode:  # it promised and is gone since
            return self._refuse(
                place, place.overloaded("the decode instance was lost while it was placed")
            )
        del self._open[place.place_id]
        # The instance knows its queue best.
        winner = place.winner.queued_for(sides["prefill"].expected_start_s)
        if decode is not None:
            forecast = self.learnt(place.request.model).forecast
            forecast.placed(now_s + winner.predicted.ttft_s, now_s)
        decision = decide(
            place.request,
            place.ranking,
            winner,
            decode,
            place.policy.name,
            self._around(place.request, now_s, place),
        )
        if sides["prefill"].is_started_for(decode):
            decision = replace(decision, is_started=True)
        return [AnswerPlaced(place.place_id, decision)]

    def _refuse(self, place: OpenPlacement, refusal: Refusal) -> list[Effect]:
        """Answer, and give back what was promised or asked for."""
        self._open.pop(place.place_id, None)
        if place.sides:
            self._given_up[place.place_id] = place.request
            while len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        effects: list[Effect] = []
        for role, side in sorted(place.sides.items()):
            self.view.withdraw(role, side.key, place.place_id)
            effects.append(place.release(role, side.key, refusal.message))
        counts = () if place.ranking is None else tuple(sorted(place.ranking.counts.items()))
        effects.append(AnswerRefused(place.place_id, refusal, counts))
        return effects

    def _on_timer(self, now_s: float) -> list[Effect]:
        self.view.expire(now_s)
        effects: list[Effect] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            place = self._open.get(heapq.heappop(self._deadlines)[1])
            if place is None:
                continue
            effects.extend(
                self._refuse(place, place.overloaded("the instances did not answer in time"))
            )
        return effects

    def _hear(self, view: InstanceView, now_s: float) -> None:
        known = self.view.find(view.role, view.key)
        if known is not None and view.role == "decode":
            since_s = min(now_s - known.seen_s, self.settings.lease_s)
            self.learnt(view.model).forecast.stayed(known.view.running, since_s)
        self.view.report(view, now_s)

    # --- parts ---------------------------------------------------------------------------------
    def _around(
        self, request: PlacementRequest, now_s: float, place: OpenPlacement | None = None
    ) -> Surroundings:
        learnt = self.learnt(request.model)
        return Surroundings(
            view=self.view,
            cost=learnt.cost,
            forecast=learnt.forecast,
            balancing_threshold=self.settings.balancing_threshold,
            rng=self._rng,
            now_s=now_s,
            refused=frozenset() if place is None else place.refused,
            retry_after_s=None if place is None else place.retry_after_s,
            max_sources=self.settings.max_sources,
            allowed=self._allowed(request) if place is None else place.allowed,
            rule=self.settings.admission,
        )

    def _policy(self, request: PlacementRequest) -> PlacementPolicy:
        name = request.policy or self.settings.policy
        if name not in self._policies:
            self._policies[name] = POLICIES[name]()
        return self._policies[name]

    def learnt(self, model: str) -> Learnt:
        if model not in self._learnt:
            self._learnt[model] = Learnt(
                CostModel(self.settings.profile), DecodeForecast(self.settings.decode_time_s)
            )
        return self._learnt[model]

    def _allowed(self, request: PlacementRequest) -> Slo:
        settings = self.settings
        slo = settings.slo.and_also(settings.model_slos.get(request.model, NO_SLO))
        return admission.allowed_for(slo.and_also(request.slo), request.priority)
