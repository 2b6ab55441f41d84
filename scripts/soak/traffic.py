"""A steady number of users, each with one question at a time; what became of all of them."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from scripts.soak.asking import HANG_S, Kind, Outcome, Question, Where, ask

PAUSE_AFTER_ERROR_S = 0.1
MAX_KEPT_ERRORS = 20


@dataclass(slots=True)
class Seen:
    """What all users saw so far."""

    counts: Counter[Kind] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    """The first of them, in words."""
    last_right_s: list[float] = field(default_factory=list)
    """By user: when the last question that was answered right had been asked."""
    max_gap_s: float = 0.0
    max_first_s: float = 0.0
    """The longest wait for a first token."""

    def note(self, user: int, outcome: Outcome) -> None:
        self.counts[outcome.kind] += 1
        self.max_gap_s = max(self.max_gap_s, outcome.gap_s)
        if outcome.first_s:
            self.max_first_s = max(self.max_first_s, outcome.first_s - outcome.asked_s)
        if outcome.kind == "right":
            self.last_right_s[user] = outcome.asked_s
        elif not outcome.is_good and len(self.errors) < MAX_KEPT_ERRORS:
            self.errors.append(f"{outcome.kind}: {outcome.detail}")

    @property
    def num_errors(self) -> int:
        return sum(self.counts[kind] for kind in ("refused", "failed", "cut"))

    def all_are_served(self, since_s: float) -> bool:
        """Each user has had a right answer to a question asked after that time."""
        return all(asked_s > since_s for asked_s in self.last_right_s)


@dataclass(frozen=True, slots=True)
class Habits:
    """How users ask."""

    fields: Callable[[random.Random], dict[str, Any]] = lambda _rng: {}
    """More of the body, drawn anew for each question."""
    leave_share: float = 0.0
    """Of the questions whose client does not wait for the end."""
    most_patience_s: float = 1.0
    """Of those."""
    fresh_share: float = 0.0
    """Of the questions that are asked over a connection of their own."""


class Traffic:
    def __init__(
        self,
        wheres: Sequence[Where],
        questions: Sequence[Question],
        num_users: int,
        habits: Habits,
        seed: int,
    ) -> None:
        self._wheres = wheres
        self._questions = questions
        self._habits = habits
        self._seed = seed
        self.num_users = num_users
        self.seen = Seen(last_right_s=[float("-inf")] * num_users)

    async def run(self, over: asyncio.Event) -> None:
        """Until `over`, and until what is under way then has ended."""
        limits = httpx.Limits(max_connections=2 * self.num_users)
        async with (
            httpx.AsyncClient(trust_env=False, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):
            for user in range(self.num_users):
                group.create_task(self._ask_on(http, user, over))

    async def _ask_on(self, http: httpx.AsyncClient, user: int, over: asyncio.Event) -> None:
        rng = random.Random(self._seed * 1_000 + user)
        turn = user
        while not over.is_set():
            leaves = rng.random() < self._habits.leave_share
            patience_s = rng.uniform(0.0, self._habits.most_patience_s) if leaves else HANG_S
            async with AsyncExitStack() as stack:
                connection = http
                if rng.random() < self._habits.fresh_share:
                    fresh = httpx.AsyncClient(trust_env=False)
                    connection = await stack.enter_async_context(fresh)
                outcome = await ask(
                    connection,
                    self._wheres[turn % len(self._wheres)],
                    rng.choice(self._questions),
                    self._habits.fields(rng),
                    patience_s=patience_s,
                )
            self.seen.note(user, outcome)
            if not outcome.is_good:
                turn += 1  # as a client does that knows another gateway
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)
