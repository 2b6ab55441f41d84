"""The live view of instances: their last reports, and what was placed on them since.

A report may be half a second old; what this conductor placed meanwhile is added to it, so that a
burst does not go to the one instance that looked idle. Pure: time is given.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.scheduling.cost_model import CostModel
from shared.scheduling.vocabulary import InstanceKey, InstanceView, PlacementRequest, Role

FORGET_AFTER_S = 60.0
MAX_RETIRED = 16


@dataclass(slots=True)
class Promise:
    """Load that a placement brings to an instance and that its reports do not show yet."""

    compute_s: float
    tokens: int
    room_tokens: int
    ends_s: float
    is_answered: bool = False


@dataclass(slots=True)
class Seen:
    """One instance: what it said, when, and what was promised since."""

    view: InstanceView
    seen_s: float
    is_suspect: bool = False
    """It did not answer; not chosen until it reports again."""
    promises: dict[int, Promise] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.view.running + self.view.queued_requests + len(self.promises)

    @property
    def free_tokens(self) -> int:
        return self.view.free_tokens - sum(p.room_tokens for p in self.promises.values())

    @property
    def context_tokens(self) -> int:
        promised = sum(p.tokens for p in self.promises.values())
        return self.view.context_in_batch_tokens + promised

    def queue_s(self, now_s: float) -> float:
        """Until a request that comes now would start."""
        reported_s = max(0.0, self.view.expected_start_s - (now_s - self.seen_s))
        return reported_s + sum(promise.compute_s for promise in self.promises.values())


class ClusterView:
    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[tuple[Role, str], Seen] = {}
        self._last: dict[tuple[Role, str], tuple[str, float]] = {}
        """The current incarnation and when it spoke last; kept when it is lost."""
        self._retired: dict[tuple[Role, str], list[str]] = {}
        self._expire_s: float | None = None
        self._models: set[str] = set()

    # --- what instances say --------------------------------------------------------------------
    def report(self, view: InstanceView, now_s: float) -> None:
        """A newer incarnation replaces the old one for good; late words of that are ignored."""
        name = (view.role, view.id)
        if view.incarnation in self._retired.get(name, ()):
            return
        last = self._last.get(name)
        if last is not None and last[0] != view.incarnation:
            retired = self._retired.setdefault(name, [])
            retired.append(last[0])
            del retired[:-MAX_RETIRED]
        self._last[name] = (view.incarnation, now_s)
        self._expire_by(now_s + FORGET_AFTER_S)
        seen = self._seen.get(name)
        if seen is None or seen.view.incarnation != view.incarnation:
            self._seen[name] = Seen(view, now_s)
        else:
            seen.view, seen.seen_s, seen.is_suspect = view, now_s, False
            # An answer and a report of one process come in the order they were made.
            for place_id in [i for i, p in seen.promises.items() if p.is_answered]:
                del seen.promises[place_id]
        if view.model:
            self._models.add(view.model)

    def lose(self, role: Role, key: InstanceKey) -> None:
        """It is gone; a later report brings it back (it may only have been cut off)."""
        seen = self._seen.get((role, key[0]))
        if seen is not None and seen.view.key == key:
            del self._seen[role, key[0]]

    def suspect(self, role: Role, key: InstanceKey) -> None:
        seen = self.find(role, key)
        if seen is not None:
            seen.is_suspect = True

    def find(self, role: Role, key: InstanceKey) -> Seen | None:
        seen = self._seen.get((role, key[0]))
        return seen if seen is not None and seen.view.key == key else None

    def with_id(self, role: Role, instance_id: str) -> Seen | None:
        return self._seen.get((role, instance_id))

    def knows_model(self, model: str) -> bool:
        """It was served at some time, if not now."""
        return model in self._models

    @property
    def models(self) -> list[str]:
        return sorted(self._models)

    # --- what was placed -----------------------------------------------------------------------
    def promise(self, role: Role, key: InstanceKey, place_id: int, promise: Promise) -> None:
        seen = self.find(role, key)
        if seen is not None:
            seen.promises[place_id] = promise
            self._expire_by(promise.ends_s)

    def answered(self, role: Role, key: InstanceKey, place_id: int) -> None:
        """The instance counts it from now on: its next report shows it."""
        seen = self.find(role, key)
        if seen is not None and place_id in seen.promises:
            seen.promises[place_id].is_answered = True

    def withdraw(self, role: Role, key: InstanceKey, place_id: int) -> None:
        seen = self.find(role, key)
        if seen is not None:
            seen.promises.pop(place_id, None)

    # --- who may be chosen ---------------------------------------------------------------------
    def obstacle(self, role: Role, seen: Seen, request: PlacementRequest, now_s: float) -> str:
        """Why this instance cannot take the request; empty when it can."""
        view = seen.view
        if view.model != request.model:
            return "other_model"
        if view.incarnation in request.exclude:
            return "excluded"
        if view.state != "ready":
            return view.state
        if now_s - seen.seen_s > self._lease_s:
            return "silent"
        if seen.is_suspect:
            return "no_answer"
        if request.num_tokens >= view.context_tokens:
            return "context"
        if role == "decode":
            if view.capacity_tokens < request.room_tokens:
                return "too_small"
            if seen.free_tokens < request.room_tokens:
                return "full"
        return ""

    def eligible(
        self, role: Role, request: PlacementRequest, now_s: float
    ) -> tuple[list[Seen], Counter[str]]:
        """Instances that can take the request, by id; the others counted by reason."""
        insisted = request.prefill if role == "prefill" else request.decode
        found: list[Seen] = []
        counts: Counter[str] = Counter()
        for seen in self.of_role(role):
            if insisted is not None and seen.view.id != insisted:
                counts["not_insisted"] += 1
                continue
            obstacle = self.obstacle(role, seen, request, now_s)
            if obstacle:
                counts[obstacle] += 1
            else:
                found.append(seen)
        return found, counts

    def of_role(self, role: Role) -> Iterator[Seen]:
        for name in sorted(self._seen):
            if name[0] == role:
                yield self._seen[name]

    def queues_s(self, now_s: float) -> dict[str, float]:
        return {seen.view.id: seen.queue_s(now_s) for seen in self.of_role("prefill")}

    # --- time ----------------------------------------------------------------------------------
    def expire(self, now_s: float) -> None:
        """Promises end by themselves; instances silent for very long are forgotten."""
        if self._expire_s is None or now_s < self._expire_s:
            return
        self._expire_s = None
        for seen in self._seen.values():
            for place_id in [i for i, p in seen.promises.items() if p.ends_s <= now_s]:
                del seen.promises[place_id]
            for promise in seen.promises.values():
                self._expire_by(promise.ends_s)
        for name, (_, spoke_s) in list(self._last.items()):
            if now_s >= spoke_s + FORGET_AFTER_S:
                del self._last[name]
                self._seen.pop(name, None)
                self._retired.pop(name, None)
            else:
                self._expire_by(spoke_s + FORGET_AFTER_S)

    def _expire_by(self, time_s: float) -> None:
        if self._expire_s is None or time_s < self._expire_s:
            self._expire_s = time_s

    def next_deadline_s(self) -> float | None:
        """When `expire` may have something to do."""
        return self._expire_s

    def check_integrity(self) -> None:
        for (role, instance_id), seen in self._seen.items():
            assert (seen.view.role, seen.view.id) == (role, instance_id), "view under a wrong name"
            retired = self._retired.get((role, instance_id), ())
            assert seen.view.incarnation not in retired, "a retired incarnation is in the view"
            for promise in seen.promises.values():
                assert promise.compute_s >= 0, "negative promise"
                assert promise.room_tokens >= 0, "negative promise"


def step_s(seen: Seen, request: PlacementRequest, cost: CostModel) -> float:
    """A decode step once the request has joined."""
    return cost.decode_step_s(seen.batch + 1, seen.context_tokens + request.num_tokens)
