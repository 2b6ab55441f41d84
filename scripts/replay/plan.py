"""From a trace to requests: prompts of token ids, lengths scaled to the model. Sends nothing."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

FIRST_TOKEN, LAST_TOKEN = 3, 500
"""Ids that every vocabulary has and that are no special tokens."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    scale: float = 1.0
    """Lengths are divided by it."""
    speed: float = 1.0
    """Arrivals come so much faster than recorded."""
    is_spread: bool = False
    """Requests come over the tick that their time is rounded to: some traces count in ticks."""
    context_tokens: int = 1 << 30
    max_output_tokens: int = 1 << 30
    salt: str = ""
    """Other tokens for the same ids: a run does not hit what another left."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    at_s: float
    num_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    block_tokens: int
    salt: str

    def prompt(self) -> list[int]:
        """The same ids give the same tokens; made when it is sent, for a plan may be long."""
        tokens: list[int] = []
        for block in self.block_ids:
            rng = random.Random(f"{self.salt}:{block}")
            tokens += rng.choices(range(FIRST_TOKEN, LAST_TOKEN), k=self.block_tokens)
            if len(tokens) >= self.num_tokens:
                break
        # Where only full blocks have ids the rest is this request's own.
        missing = self.num_tokens - len(tokens)
        if missing > 0:
            rng = random.Random(f"{self.salt}:{self.at_s}:{self.num_tokens}")
            tokens += rng.choices(range(FIRST_TOKEN, LAST_TOKEN), k=missing)
        return tokens[: self.num_tokens]


@dataclass(frozen=True, slots=True)
class Plan:
    requests: tuple[PlannedRequest, ...]
    num_cut: int
    """Prompts that the model's context cannot hold: cut at its length."""


def spread_ticks(arrivals_s: Sequence[float]) -> list[float]:
    """Each request at random within its tick, the shortest time between two moments; in order."""
    rng = random.Random(0)
    moments = sorted(set(arrivals_s))
    tick_s = min((after - before for before, after in itertools.pairwise(moments)), default=0.0)
    spread: list[float] = []
    for moment_s, group in itertools.groupby(arrivals_s):
        count = sum(1 for _ in group)
        spread += sorted(rng.uniform(moment_s, moment_s + tick_s) for _ in range(count))
    return spread


def make_plan(requests: Sequence[TraceRequest], settings: PlanSettings) -> Plan:
    block_tokens = max(1, round(BLOCK_TOKENS / settings.scale))
    planned, num_cut = [], 0
    arrivals_s = [request.arrival_s - requests[0].arrival_s for request in requests]
    if settings.is_spread:
        arrivals_s = spread_ticks(arrivals_s)
    for request, arrival_s in zip(requests, arrivals_s, strict=True):
        output = max(1, round(request.output_tokens / settings.scale))
        output = min(output, settings.max_output_tokens, settings.context_tokens // 4)
        room = settings.context_tokens - output - 1
        wanted = max(1, round(request.num_tokens * block_tokens / BLOCK_TOKENS))
        num_cut += wanted > room
        planned.append(
            PlannedRequest(
                at_s=arrival_s / settings.speed,
                num_tokens=min(wanted, room),
                output_tokens=output,
                block_ids=request.block_ids,
                block_tokens=block_tokens,
                salt=settings.salt,
            )
        )
    return Plan(tuple(planned), num_cut)
