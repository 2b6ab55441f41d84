"""The live view of instances: their last reports, and what was placed on them since.

Each role's numbers are mirrored in a table of columns, from which decisions are made.

A report may be half a second old; what this conductor placed meanwhile is added to it, so that a
burst does not go to the one instance that looked idle. Pure: time is given.
"""

import itertools
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from shared.scheduling.cost_model import CostModel
from shared.scheduling.eligibility import Standing, drop_unable
from shared.scheduling.events import AskedElsewhere
from shared.scheduling.instance_table import STATES, InstanceTable, Rows, among
from shared.scheduling.neighbours import Neighbours
from shared.scheduling.node_loads import NodeLoads
from shared.scheduling.quarantine import Quarantine
from shared.scheduling.queue_discipline import NUM_SIZES, size_class
from shared.scheduling.vocabulary import InstanceKey, InstanceView, PlacementRequest, Role

FORGET_AFTER_S = 60.0
ALL_TOKENS = 1 << 40
"""No instance has so much room: an answer counts with all it may need."""
MAX_RETIRED = 16
ASKED_ENDS_S = 2.0
"""What another conductor asks for counts no longer than this without a report."""
ASKED_SHOWS_S = 0.05
"""What another conductor asks for is promised, and in the reports, so much later at the latest."""


@dataclass(slots=True)
class Promise:
    """Load that a placement brings to an instance and that its reports do not show yet."""

    compute_s: float
    tokens: int
    room_tokens: int
    compute_tokens: int
    ends_s: float
    is_answered: bool = False
    shows_from_s: float = 0.0
    """Reports that are heard before do not have it yet."""


@dataclass(slots=True)
class Seen:
    """One instance: what it said, when, and what was promised since."""

    view: InstanceView
    seen_s: float
    row: int
    """Its place in the table of its role."""
    is_suspect: bool = False
    """It did not answer; not chosen until it reports again."""
    promises: dict[int, Promise] = field(default_factory=dict)


class ClusterView:
    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[tuple[Role, str], Seen] = {}
        self._last: dict[tuple[Role, str], tuple[str, float]] = {}
        """The current incarnation and when it spoke last; kept when it is lost."""
        self._retired: dict[tuple[Role, str], list[str]] = {}
        self._expire_s: float | None = None
        self._last_elsewhere = 0
        """Promises to other conductors have numbers below 0 here."""
        self._models: set[str] = set()
        self.tables: dict[Role, InstanceTable] = {
            "prefill": InstanceTable(),
            "decode": InstanceTable(),
        }
        self._standing = {role: Standing(table) for role, table in self.tables.items()}
        self.nodes = NodeLoads(self.tables["prefill"])
        self.quarantine = Quarantine()
        self.neighbours = Neighbours(self.tables["prefill"], self.tables["decode"])

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
        table = self.tables[view.role]
        if seen is None or seen.view.incarnation != view.incarnation:
            if seen is not None:
                table.remove(seen.row)
            seen = self._seen[name] = Seen(view, now_s, table.add(view))
            is_moved = True
        else:
            is_moved = table.replace(seen.row, view)
            seen.view, seen.seen_s, seen.is_suspect = view, now_s, False
            # An answer and a report of one process come in the order they were made.
            shown = [
                place_id
                for place_id, promise in seen.promises.items()
                if promise.is_answered and promise.shows_from_s <= now_s
            ]
            for place_id in shown:
                del seen.promises[place_id]
        self._mirror(seen)
        if is_moved and view.role == "prefill":
            self.nodes.show((view.node, view.node_incarnation))
        if view.model:
            self._models.add(view.model)

    def lose(self, role: Role, key: InstanceKey) -> None:
        """It is gone; a later report brings it back (it may only have been cut off)."""
        seen = self._seen.get((role, key[0]))
        if seen is not None and seen.view.key == key:
            self._remove((role, key[0]))

    def _remove(self, name: tuple[Role, str]) -> None:
        seen = self._seen.pop(name, None)
        if seen is not None:
            self.tables[name[0]].remove(seen.row)

    def suspect(self, role: Role, key: InstanceKey) -> None:
        seen = self.find(role, key)
        if seen is not None:
            seen.is_suspect = True
            self._mirror(seen)

    def find(self, role: Role, key: InstanceKey) -> Seen | None:
        seen = self._seen.get((role, key[0]))
        return seen if seen is not None and seen.view.key == key else None

    def with_id(self, role: Role, instance_id: str) -> Seen | None:
        return self._seen.get((role, instance_id))

    def room_tokens(self, role: Role, key: InstanceKey, request: PlacementRequest) -> int:
        """What it counts for a request that it admits."""
        seen = self.find(role, key)
        if seen is None or role != "decode":
            return 0
        return request.admitted_tokens(seen.view.admit_tokens)

    def may_hold(self, node: str, incarnation: str) -> bool:
        """False when instances are attached to that node, all to another incarnation of it."""
        prefill, decode = self.tables["prefill"], self.tables["decode"]
        if (node, incarnation) in prefill.rows_on:
            return True
        if node in prefill.num_on:
            return False
        return (node, incarnation) in decode.rows_on or node not in decode.num_on

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
            is_new = place_id not in seen.promises
            seen.promises[place_id] = promise
            if is_new:
                self._add(seen, promise)
            else:
                self._mirror(seen)
            self._expire_by(promise.ends_s)

    def hear_asked(self, asked: AskedElsewhere, cost: CostModel, now_s: float) -> None:
        """Counts until the next report of the instance, as what it promised to us does."""
        seen = self.find(asked.role, asked.instance)
        if seen is None:
            return
        self._last_elsewhere -= 1
        is_prefill = asked.role == "prefill"
        answer = min(asked.max_tokens, seen.view.admit_tokens or asked.max_tokens)
        promise = Promise(
            compute_s=cost.prefill_s(asked.num_tokens, asked.cached_tokens) if is_prefill else 0.0,
            tokens=asked.num_tokens,
            room_tokens=0 if is_prefill else asked.num_tokens + answer,
            compute_tokens=asked.num_tokens - asked.cached_tokens if is_prefill else 0,
            ends_s=now_s + ASKED_ENDS_S,
            is_answered=True,
            shows_from_s=now_s + ASKED_SHOWS_S,
        )
        self.promise(asked.role, asked.instance, self._last_elsewhere, promise)

    def answered(self, role: Role, key: InstanceKey, place_id: int) -> None:
        """The instance counts it from now on: its next report shows it."""
        seen = self.find(role, key)
        if seen is not None and place_id in seen.promises:
            seen.promises[place_id].is_answered = True

    def withdraw(self, role: Role, key: InstanceKey, place_id: int) -> None:
        seen = self.find(role, key)
        if seen is not None and seen.promises.pop(place_id, None) is not None:
            self._mirror(seen)

    def _mirror(self, seen: Seen) -> None:
        """Its row of the table, promises added."""
        view, promises = seen.view, seen.promises.values()
        table = self.tables[view.role]
        is_sorted = (
            view.discipline != "fifo"
            and len(view.work_by_size_s) == len(view.prompts_by_size) == NUM_SIZES
        )
        fixed = (
            seen.is_suspect,
            is_sorted,
            STATES.index(view.state),
            table.models.of(view.model),
            table.roots.of(view.root),
            view.capacity_tokens,
            view.admit_tokens or ALL_TOKENS,
            view.context_tokens,
            view.block_tokens,
            view.grid_tokens,
            view.block_bytes,
        )
        changing = (
            seen.seen_s,
            seen.seen_s + view.expected_start_s,
            sum(promise.compute_s for promise in promises),
            view.running + view.queued_requests + len(promises),
            view.free_tokens - sum(promise.room_tokens for promise in promises),
            view.context_in_batch_tokens
            + coming_tokens(view)
            + sum(promise.tokens for promise in promises),
            view.queued_tokens + sum(promise.compute_tokens for promise in promises),
        )
        table.write(seen.row, fixed, changing)
        if is_sorted:
            work_s, prompts = list(view.work_by_size_s), list(view.prompts_by_size)
            for promise in promises:
                size = size_class(promise.compute_s)
                work_s[size] += promise.compute_s
                prompts[size] += 1
            table.write_queue(
                seen.row,
                list(itertools.accumulate(work_s, initial=0.0)),
                list(itertools.accumulate(prompts, initial=0.0)),
            )

    def _add(self, seen: Seen, promise: Promise) -> None:
        """To its row of the table."""
        self.tables[seen.view.role].add_load(
            seen.row,
            compute_s=promise.compute_s,
            tokens=promise.tokens,
            room_tokens=promise.room_tokens,
            compute_tokens=promise.compute_tokens,
        )

    # --- who may be chosen ---------------------------------------------------------------------
    def eligible(
        self,
        role: Role,
        request: PlacementRequest,
        now_s: float,
        *,
        root: bytes | None = None,
        refused: AbstractSet[InstanceKey] = frozenset(),
    ) -> tuple[Rows, dict[str, int]]:
        """Rows of instances that can take the request; the others counted by their first reason."""
        table, standing = self.tables[role], self._standing[role]
        insisted = request.prefill if role == "prefill" else request.decode
        if insisted is None:
            sieve = standing.ready(request.model)
        else:
            seen = self.with_id(role, insisted)
            sieve = standing.insisted(request.model, None if seen is None else seen.row)
        drop_unable(sieve, table, role, request, now_s, self._lease_s)
        if request.exclude:
            rows = [row for key, row in table.row_of.items() if key[1] in request.exclude]
            sieve.drop_rows("excluded", rows)
        if root is not None:
            is_other = table.column("root", sieve.rows) != table.roots.known(root)
            sieve.drop("other_format", is_other)
        if refused:
            of_role = (self.find(role, key) for key in refused)
            sieve.drop_rows("refused", [seen.row for seen in of_role if seen is not None])
        kept_out = table.rows_of(role, self.quarantine.parties_out(now_s))
        if kept_out and not among(sieve.rows, kept_out).all():  # never the last one
            sieve.drop_rows("quarantined", kept_out)
        return sieve.rows, sieve.counts

    def began(self, role: Role, key: InstanceKey, now_s: float) -> None:
        """Work goes to it: the one probe at a time of what is quarantined."""
        seen = self.find(role, key)
        self.quarantine.began((role, *key), now_s)
        if seen is not None:
            node = (seen.view.node, seen.view.node_incarnation)
            self.quarantine.began(("transfer", *node), now_s)

    def of_role(self, role: Role) -> Iterator[Seen]:
        for name in sorted(self._seen):
            if name[0] == role:
                yield self._seen[name]

    # --- time ----------------------------------------------------------------------------------
    def expire(self, now_s: float) -> None:
        """Promises end by themselves; instances silent for very long are forgotten."""
        if self._expire_s is None or now_s < self._expire_s:
            return
        self._expire_s = None
        for seen in self._seen.values():
            ended = [i for i, p in seen.promises.items() if p.ends_s <= now_s]
            for place_id in ended:
                del seen.promises[place_id]
            if ended:
                self._mirror(seen)
            for promise in seen.promises.values():
                self._expire_by(promise.ends_s)
        for name, (_, spoke_s) in list(self._last.items()):
            if now_s >= spoke_s + FORGET_AFTER_S:
                del self._last[name]
                self._remove(name)
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


def coming_tokens(view: InstanceView) -> int:
    """Context of those promised to a decode instance and not in its batch yet.

    As it says; else they are taken to be like those in the batch.
    """
    if view.role != "decode" or not view.queued_requests:
        return 0
    mean_tokens = view.context_in_batch_tokens / max(view.running, 1)
    return view.queued_tokens or int(view.queued_requests * mean_tokens)
