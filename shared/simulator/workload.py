"""Makes request traces where there is none: Poisson arrivals of sessions under shared prompts."""

import random
from dataclasses import dataclass

from shared.simulator.trace import BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    num_requests: int = 2_000
    requests_per_s: float = 3.4
    input_tokens: float = 8_000.0
    """Mean of what a request adds to its session; lengths are log-normal."""
    output_tokens: float = 340.0
    turn_share: float = 0.5
    """Requests that go on with a session, from among the latest."""
    num_prompts: int = 4
    prompt_blocks: int = 2
    """Sessions begin with one of so many system prompts."""
    spread: float = 1.0
    """Sigma of the log-normal lengths."""
    output_spread: float | None = None
    """Of the answers; None: as the prompts'."""
    seed: int = 0


def make_workload(settings: WorkloadSettings) -> list[TraceRequest]:
    """Deterministic in its settings."""
    rng = random.Random(settings.seed)
    output_spread = settings.spread if settings.output_spread is None else settings.output_spread
    sessions: list[list[int]] = []
    requests: list[TraceRequest] = []
    now_s, last_id = 0.0, settings.num_prompts * settings.prompt_blocks
    for _ in range(settings.num_requests):
        now_s += rng.expovariate(settings.requests_per_s)
        if sessions and rng.random() < settings.turn_share:
            session = rng.choice(sessions[-200:])
        else:
            first = rng.randrange(settings.num_prompts) * settings.prompt_blocks
            session = list(range(first, first + settings.prompt_blocks))
            sessions.append(session)
        added = _length(rng, settings.input_tokens, settings.spread)
        for _ in range(added // BLOCK_TOKENS):
            session.append(last_id)
            last_id += 1
        num_tokens = len(session) * BLOCK_TOKENS + 1 + added % BLOCK_TOKENS
        output = _length(rng, settings.output_tokens, output_spread)
        requests.append(TraceRequest(now_s, num_tokens, output, tuple(session)))
    return requests


def _length(rng: random.Random, mean: float, spread: float) -> int:
    """Log-normal with this mean, at least 1."""
    return max(1, round(mean * rng.lognormvariate(-spread * spread / 2, spread)))
