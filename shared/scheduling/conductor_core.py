"""The conductor's whole decision machine, sans I/O: events and the time in, effects out.

Owns the view of instances, placements until both promises stand (and what they bring until it
shows in reports), and the cost models. Never: phases, retries or leases of requests.

A placement asks a prefill and a decode instance at once. The one that refuses is replaced by the
next best, the other's promise is kept; when nobody is left the kept promise is given back.
"""

import copy
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from shared.scheduling import admission
from shared.scheduling.cluster_view import ClusterView, Promise
from shared.scheduling.cost_model import CostModel, CostProfile, PrefillSample
from shared.scheduling.effects import (
    AnswerPlaced,
    AnswerRefused,
    Effect,
    SendRelease,
    SendReserve,
)
from shared.scheduling.events import (
    BillFinished,
    Event,
    InstanceLost,
    InstanceReported,
    NodeReported,
    PlaceAsked,
    ReserveAnswered,
    ReserveFailed,
    TimerFired,
)
from shared.scheduling.placement import (
    Ranking,
    Surroundings,
    choose_decode,
    decide,
    kv_bytes,
    rank_prefills,
)
from shared.scheduling.policies.base import PlacementPolicy
from shared.scheduling.policies.registry import DEFAULT_POLICY, POLICIES
from shared.scheduling.vocabulary import (
    Candidate,
    InstanceKey,
    InstanceView,
    NodeMatch,
    PlacementDecision,
    PlacementRequest,
    Refusal,
    Role,
)

MAX_GIVEN_UP = 1_024


@dataclass(frozen=True, slots=True)
class CoreSettings:
    policy: str = DEFAULT_POLICY
    balancing_threshold: float = 1.5
    lease_s: float = 3.0
    """An instance silent for longer is not chosen."""
    promise_ttl_s: float = 2.0
    place_timeout_s: float = 1.0
    """Well below the time a promise stands, for the gateway must still come."""
    max_asks: int = 8
    """Reservations asked for one placement, both roles together."""
    max_sources: int = 1
    """Nodes that a prefix is fetched from at once; 1 until the nodes can."""
    profile: CostProfile = field(default_factory=CostProfile)


@dataclass(slots=True)
class _Side:
    key: InstanceKey
    is_accepted: bool = False
    expected_start_s: float = 0.0


@dataclass(slots=True)
class _Open:
    """A placement that was asked for and is not answered yet."""

    place_id: int
    request: PlacementRequest
    matches: tuple[NodeMatch, ...]
    policy: PlacementPolicy
    deadline_s: float
    ranking: Ranking | None = None
    winner: Candidate | None = None
    sides: dict[Role, _Side] = field(default_factory=dict)
    refused: set[InstanceKey] = field(default_factory=set)
    retry_after_s: float | None = None
    num_asks: int = 0


class ConductorCore:
    def __init__(self, settings: CoreSettings, rng: random.Random) -> None:
        if settings.policy not in POLICIES:
            raise ValueError(f"policy: {settings.policy!r} is none of {', '.join(POLICIES)}")
        self.settings = settings
        self.view = ClusterView(settings.lease_s)
        self._rng = rng
        self._policies: dict[str, PlacementPolicy] = {}
        self._costs: dict[str, CostModel] = {}
        self._open: dict[int, _Open] = {}
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
                self.view.report(event.instance, now_s)
                return []
            case NodeReported():
                self.view.nodes.report(event.node, event.bytes_in_flight, now_s)
                return []
            case InstanceLost():
                self.view.lose(event.role, event.instance)
                return []
            case BillFinished():
                self._learn(event)
                return []
            case TimerFired():
                return self._on_timer(now_s)
            case _:
                assert_never(event)

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
        refusal = self._refusal_at_once(request)
        if refusal is not None:
            return refusal
        policy = copy.deepcopy(self._policy(request))
        around = replace(self._around(request.model, now_s), rng=random.Random(0))
        ranking = rank_prefills(request, matches, policy, around)
        if isinstance(ranking, Refusal):
            return ranking
        winner = ranking.prices.best
        decode = choose_decode(request, winner.prefill.root, around)
        if isinstance(decode, Refusal):
            return decode
        return decide(request, ranking, winner, decode, policy.name, around, num_losers=None)

    def check_integrity(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self.view.check_integrity()
        for place_id, place in self._open.items():
            assert place.place_id == place_id, "placement under a wrong id"
            assert place.sides, "a placement waits for nobody"
            assert any(not side.is_accepted for side in place.sides.values()), "not answered"
            assert place.winner is not None, "a placement without a winner"
            for side in place.sides.values():
                assert side.key not in place.refused, "an instance that refused is asked"

    # --- placing -------------------------------------------------------------------------------
    def _on_asked(self, event: PlaceAsked, now_s: float) -> list[Effect]:
        request = event.request
        refusal = self._refusal_at_once(request)
        if refusal is not None:
            return [AnswerRefused(event.place_id, refusal)]
        place = _Open(
            place_id=event.place_id,
            request=request,
            matches=event.matches if request.use_cache else (),
            policy=self._policy(request),
            deadline_s=now_s + min(request.remaining_s, self.settings.place_timeout_s),
        )
        return self._ask(place, now_s)

    def _refusal_at_once(self, request: PlacementRequest) -> Refusal | None:
        if request.policy is not None and request.policy not in POLICIES:
            return Refusal(
                "bad_request",
                f"policy: {request.policy!r} is none of {', '.join(POLICIES)}",
                "policy",
            )
        return admission.refuse_request(request, self.view)

    def _ask(self, place: _Open, now_s: float) -> list[Effect]:
        """Choose and ask whoever is missing; nobody is asked when one role has nobody."""
        around = self._around(place.request.model, now_s, place)
        if "prefill" not in place.sides:
            kept = place.sides.get("decode")
            ranking = rank_prefills(
                place.request, place.matches, place.policy, around, self._root_of(kept)
            )
            if isinstance(ranking, Refusal):
                return self._refuse(place, ranking)
            place.ranking, place.winner = ranking, ranking.prices.best
        assert place.winner is not None
        decode: InstanceView | None = None
        if "decode" not in place.sides:
            chosen = choose_decode(place.request, place.winner.prefill.root, around)
            if isinstance(chosen, Refusal):
                return self._refuse(place, chosen)
            decode = chosen
        if place.num_asks >= self.settings.max_asks:
            return self._refuse(place, _overloaded(place, "too many instances refused"))
        if place.place_id not in self._open:
            self._open[place.place_id] = place
            heapq.heappush(self._deadlines, (place.deadline_s, place.place_id))
        effects: list[Effect] = []
        if "prefill" not in place.sides:
            effects.append(self._reserve(place, "prefill", place.winner.prefill.key, now_s))
        if decode is not None:
            effects.append(self._reserve(place, "decode", decode.key, now_s))
        return effects

    def _root_of(self, decode: _Side | None) -> bytes | None:
        """The format that a kept decode promise ties the placement to."""
        seen = None if decode is None else self.view.find("decode", decode.key)
        return None if seen is None else seen.view.root

    def _reserve(self, place: _Open, role: Role, key: InstanceKey, now_s: float) -> SendReserve:
        winner = place.winner
        assert winner is not None
        place.sides[role] = _Side(key)
        place.num_asks += 1
        request = place.request
        promise = Promise(
            compute_s=winner.predicted.compute_s if role == "prefill" else 0.0,
            tokens=request.num_tokens,
            room_tokens=request.room_tokens if role == "decode" else 0,
            compute_tokens=request.num_tokens - winner.cached_tokens if role == "prefill" else 0,
            ends_s=now_s + self.settings.promise_ttl_s,
        )
        self.view.promise(role, key, place.place_id, promise)
        if role == "prefill":
            self._count_fetch(place.request, winner, now_s)
        return SendReserve(
            place_id=place.place_id,
            role=role,
            instance=key,
            request=request,
            cached_tokens=winner.cached_tokens,
            sources=winner.sources if role == "prefill" else (),
            ttl_s=self.settings.promise_ttl_s,
            reason=f"{place.policy.name}: cost {winner.cost_s:.3f} s",
        )

    def _count_fetch(self, request: PlacementRequest, winner: Candidate, now_s: float) -> None:
        """It starts with the reservation: who asks next finds these links busy."""
        if not winner.sources:
            return
        prefill, speed = winner.prefill, self._cost(request.model).bytes_per_s
        at_hand = prefill.usable_tokens(winner.local_blocks, request.num_tokens)
        num_bytes = kv_bytes(prefill, winner.cached_tokens - at_hand)
        nodes = self.view.nodes
        nodes.add((prefill.node, prefill.node_incarnation), num_bytes, now_s, speed)
        for source in winner.sources:
            share = num_bytes / len(winner.sources)
            nodes.add((source.node, source.incarnation), share, now_s, speed)

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
            side.is_accepted = True
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
            effects.append(_release(place, event.role, side.key, "no answer in time"))
        return effects + self._replace_side(place, event.role, now_s)

    def _replace_side(self, place: _Open, role: Role, now_s: float) -> list[Effect]:
        side = place.sides.pop(role)
        self.view.withdraw(role, side.key, place.place_id)
        place.refused.add(side.key)
        if now_s >= place.deadline_s:
            return self._refuse(place, _overloaded(place, "the time to place it is over"))
        return self._ask(place, now_s)

    def _answer(self, place: _Open, now_s: float) -> list[Effect]:
        sides = place.sides
        if len(sides) < 2 or not all(side.is_accepted for side in sides.values()):
            return []
        assert place.ranking is not None
        assert place.winner is not None
        decode = self.view.find("decode", sides["decode"].key)
        if decode is None:  # it promised and is gone since
            return self._refuse(
                place, _overloaded(place, "the decode instance was lost while it was placed")
            )
        del self._open[place.place_id]
        # The instance knows its queue best.
        predicted = replace(place.winner.predicted, queue_s=sides["prefill"].expected_start_s)
        winner = replace(place.winner, predicted=predicted)
        decision = decide(
            place.request,
            place.ranking,
            winner,
            decode.view,
            place.policy.name,
            self._around(place.request.model, now_s, place),
        )
        return [AnswerPlaced(place.place_id, decision)]

    def _refuse(self, place: _Open, refusal: Refusal) -> list[Effect]:
        """Answer, and give back what was promised or asked for."""
        self._open.pop(place.place_id, None)
        if place.sides:
            self._given_up[place.place_id] = place.request
            while len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        effects: list[Effect] = []
        for role, side in sorted(place.sides.items()):
            self.view.withdraw(role, side.key, place.place_id)
            effects.append(_release(place, role, side.key, refusal.message))
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
                self._refuse(place, _overloaded(place, "the instances did not answer in time"))
            )
        return effects

    # --- parts ---------------------------------------------------------------------------------
    def _around(self, model: str, now_s: float, place: _Open | None = None) -> Surroundings:
        return Surroundings(
            view=self.view,
            cost=self._cost(model),
            balancing_threshold=self.settings.balancing_threshold,
            rng=self._rng,
            now_s=now_s,
            refused=frozenset() if place is None else place.refused,
            retry_after_s=None if place is None else place.retry_after_s,
            max_sources=self.settings.max_sources,
        )

    def _policy(self, request: PlacementRequest) -> PlacementPolicy:
        name = request.policy or self.settings.policy
        if name not in self._policies:
            self._policies[name] = POLICIES[name]()
        return self._policies[name]

    def _cost(self, model: str) -> CostModel:
        if model not in self._costs:
            self._costs[model] = CostModel(self.settings.profile)
        return self._costs[model]

    def _learn(self, bill: BillFinished) -> None:
        cost = self._cost(bill.model)
        cost.learn_prefill(PrefillSample(bill.num_tokens, bill.cached_tokens, bill.compute_s))
        cost.learn_transfer(bill.fetched_bytes, bill.fetch_s)
        cost.learn_decode(bill.tbt_s, bill.num_tokens)


def _release(place: _Open, role: Role, key: InstanceKey, reason: str) -> SendRelease:
    return SendRelease(place.place_id, role, key, place.request, reason)


def _overloaded(place: _Open, why: str) -> Refusal:
    return Refusal(
        "overloaded",
        f"no pair of instances took the request: {why}",
        is_retryable=True,
        retry_after_s=place.retry_after_s or admission.RETRY_FULL_S,
    )
