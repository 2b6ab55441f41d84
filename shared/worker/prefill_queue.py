"""PURE: which prompt computes its next chunk, and what a new one would find before it.

The order is that of a queue discipline (shared.scheduling.queue_discipline), the one the simulator
and the conductor's prices know too; it is chosen anew at every chunk. The time of what is left of a
prompt comes from a cost model that learns from the chunks computed here.

A prompt takes all its slots at once with its first chunk. The one that could not get them is the
next to take any; those that have theirs go on meanwhile and give them back when they are done.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.scheduling.cost_model import (
    CostModel,
    CostProfile,
    K,
    PrefillCoefficients,
    PrefillSample,
)
from shared.scheduling.queue_discipline import (
    DEFAULT_AGEING,
    DisciplineName,
    QueueProfile,
    Waiting,
    make_discipline,
)

BASE_S = 0.005
QUADRATIC_SHARE = 0.1
"""Of the first guess: what each 1,024 tokens of context add to the time of 1,024 tokens."""


@dataclass(slots=True)
class Entry:
    """A prompt that waits or is in the middle of its chunks."""

    handle: str
    num_tokens: int
    """Of the whole prompt."""
    tokens_left: int
    arrived_s: float
    due_s: float | None = None
    is_loaded: bool = False
    has_started: bool = False


@dataclass(frozen=True, slots=True)
class Reserved:
    """A prompt that is promised and whose run has not come."""

    num_tokens: int
    uncached_tokens: int


@dataclass(slots=True)
class _Chunk:
    """What computes now."""

    handle: str
    started_s: float
    seconds: float


@dataclass(slots=True)
class PrefillQueue:
    """Owns the order of prompts and the learnt cost of the instance."""

    tokens_per_s: float
    discipline: DisciplineName = "shortest_first"
    ageing: float = DEFAULT_AGEING
    chunk_tokens: int = 256
    _entries: dict[str, Entry] = field(default_factory=dict)  # in order of arrival
    _slot_waiter: str | None = None
    _may_retry: bool = False
    _chunk: _Chunk | None = None
    _cost: CostModel = field(init=False)
    _unlearnt: list[PrefillSample] = field(default_factory=list, init=False)
    computed_tokens_total: int = field(default=0, init=False)
    compute_s_total: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.tokens_per_s <= 0:
            raise ValueError(f"tokens_per_s: must be more than 0, is {self.tokens_per_s}")
        linear_s = K / self.tokens_per_s
        guess = PrefillCoefficients(BASE_S, linear_s, QUADRATIC_SHARE * linear_s)
        self._cost = CostModel(CostProfile(prefill=guess))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: str) -> bool:
        return handle in self._entries

    @property
    def queued_tokens(self) -> int:
        return sum(entry.tokens_left for entry in self._entries.values())

    def work_s(self, num_tokens: int, uncached_tokens: int) -> float:
        """Time for the last `uncached_tokens` of a prompt."""
        return self._cost.prefill_s(num_tokens, num_tokens - uncached_tokens)

    # --- what happens ---------------------------------------------------------------------------
    def add(
        self,
        handle: str,
        num_tokens: int,
        uncached_tokens: int,
        now_s: float,
        due_s: float | None = None,
    ) -> None:
        if handle in self._entries:
            raise ValueError(f"{handle} is queued already")
        self._entries[handle] = Entry(handle, num_tokens, uncached_tokens, now_s, due_s)

    def loaded(self, handle: str, tokens_left: int) -> None:
        """Its prefix is here (or will never be): so many tokens are to be computed."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.tokens_left = tokens_left
            entry.is_loaded = True

    def next(self, now_s: float) -> str | None:
        """Whose chunk is computed next."""
        waiter = self._slot_waiter
        if waiter is not None and (self._may_retry or not self._has_other_started(waiter)):
            return waiter
        queue = [
            self._waiting(entry, entry.has_started or (entry.is_loaded and waiter is None), now_s)
            for entry in self._entries.values()
        ]
        chunk_s = self.work_s(self.chunk_tokens, self.chunk_tokens)
        chosen = make_discipline(self.discipline, self.ageing).choose(queue, now_s, chunk_s)
        return None if chosen is None else chosen.handle

    def started(self, handle: str) -> None:
        """It has its slots and computes from now on."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.has_started = True
        if self._slot_waiter == handle:
            self._slot_waiter = None

    def computing(self, handle: str, end: int, num_tokens: int, now_s: float) -> None:
        """A chunk of `num_tokens` up to position `end` begins: nobody can stop it."""
        self._chunk = _Chunk(handle, now_s, self.work_s(end, num_tokens))

    def computed(self, handle: str, end: int, num_tokens: int, seconds: float) -> None:
        """That chunk is done; `learn` makes use of what it took."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.tokens_left = max(entry.tokens_left - num_tokens, 0)
        self._chunk = None
        self._may_retry = True
        self.computed_tokens_total += num_tokens
        self.compute_s_total += seconds
        self._unlearnt.append(PrefillSample(end, end - num_tokens, seconds))

    def learn(self) -> None:
        """The cost from chunks that are done. Takes a millisecond now and then: not while somebody
        waits for what was computed."""
        samples, self._unlearnt = self._unlearnt, []
        for sample in samples:
            self._cost.learn_prefill(sample)

    def must_yield(self, handle: str) -> bool:
        """Waiting for slots in its turn would keep those waiting who hold them."""
        return self._has_other_started(handle)

    def lacks_slots(self, handle: str) -> None:
        """It got none: the next turns are for those that have theirs, no other prompt starts."""
        entry = self._entries.get(handle)
        if entry is not None:
            entry.has_started = False
            self._slot_waiter = handle
            self._may_retry = False

    def remove(self, handle: str) -> None:
        self._entries.pop(handle, None)
        self._may_retry = True
        if self._slot_waiter == handle:
            self._slot_waiter = None
        if self._chunk is not None and self._chunk.handle == handle:
            self._chunk = None

    # --- what a newcomer would find ------------------------------------------------------------
    def profile(self, reserved: Iterable[Reserved], now_s: float) -> QueueProfile:
        """All work by size class, promised prompts with it."""
        discipline = make_discipline(self.discipline, self.ageing)
        return discipline.profile(self._with(reserved, now_s), now_s)

    def expected_start_s(
        self,
        reserved: Iterable[Reserved],
        now_s: float,
        newcomer: Reserved | None = None,
    ) -> float:
        """Until a prompt that comes now starts; None: any, however long."""
        queue = self._with(reserved, now_s)
        if newcomer is None:
            return sum(one.remaining_s for one in queue)
        discipline = make_discipline(self.discipline, self.ageing)
        own_s = self.work_s(newcomer.num_tokens, newcomer.uncached_tokens)
        return discipline.wait_s(queue, own_s, now_s)

    def _with(self, reserved: Iterable[Reserved], now_s: float) -> list[Waiting]:
        """The queue, and the promised ones as if they came now."""
        queue = [self._waiting(entry, entry.is_loaded, now_s) for entry in self._entries.values()]
        promised = (self.work_s(one.num_tokens, one.uncached_tokens) for one in reserved)
        return queue + [Waiting("", seconds, now_s) for seconds in promised]

    def _waiting(self, entry: Entry, can_compute: bool, now_s: float) -> Waiting:
        remaining_s = self.work_s(entry.num_tokens, entry.tokens_left)
        chunk, in_chunk_s = self._chunk, 0.0
        if chunk is not None and chunk.handle == entry.handle:
            done_s = min(max(now_s - chunk.started_s, 0.0), chunk.seconds)
            remaining_s = max(remaining_s - done_s, 0.0)
            in_chunk_s = min(chunk.seconds - done_s, remaining_s)
        return Waiting(
            handle=entry.handle,
            remaining_s=remaining_s,
            arrived_s=entry.arrived_s,
            due_s=entry.due_s,
            is_loaded=can_compute,
            has_started=entry.has_started,
            in_chunk_s=in_chunk_s,
        )

    def _has_other_started(self, handle: str) -> bool:
        return any(entry.has_started and entry.handle != handle for entry in self._entries.values())
