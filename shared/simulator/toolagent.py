"""Makes a trace of the tool&agent kind from its published statistics, for want of the trace.

Three families of requests at 6.56 a second in batches each 3 s: chats (49 %), tool calls under one
long system prompt (37 %) and short ones under another (14 %). Means aimed at: 8,596 prompt tokens,
182 answered; of the prompts' tokens an infinite cache serves 59 %.
"""

import random
from dataclasses import dataclass, field

from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

BATCH_S = 3.0
CHAT_SHARE, TOOL_SHARE = 0.49, 0.37
TOOL_PROMPT_BLOCKS, SHORT_PROMPT_BLOCKS = 12, 5
MIN_CHAT_TOKENS, MAX_CHAT_TOKENS = 900, 32_000
MAX_TURNS = 30


@dataclass(frozen=True, slots=True)
class ToolAgentSettings:
    num_requests: int = 23_608
    requests_per_s: float = 6.56
    output_scale: float = 1.0
    turn_share: float = 0.5
    """Chats that go on with a session: what gives the published hit rate."""
    seed: int = 0


@dataclass(slots=True)
class _Ids:
    """Block numbers: never given twice."""

    last: int = 1 + TOOL_PROMPT_BLOCKS + SHORT_PROMPT_BLOCKS
    """Below: block 0 of all chats, then the two system prompts."""

    def take(self, count: int) -> tuple[int, ...]:
        first = self.last
        self.last += count
        return tuple(range(first, self.last))


@dataclass(slots=True)
class _Maker:
    rng: random.Random
    turn_share: float
    ids: _Ids = field(default_factory=_Ids)
    sessions: list[tuple[int, ...]] = field(default_factory=list)

    def chat(self) -> tuple[tuple[int, ...], int, int]:
        """(blocks, prompt tokens, answered tokens)."""
        rng = self.rng
        blocks: tuple[int, ...] = (0,)
        if self.sessions and rng.random() < self.turn_share:
            # Turns come back within minutes: from among the sessions of the last ones.
            blocks = self.sessions.pop(rng.randrange(max(0, len(self.sessions) - 700),
                                                     len(self.sessions)))  # fmt: skip
        room = MAX_CHAT_TOKENS - len(blocks) * BLOCK_TOKENS
        added = min(room, max(MIN_CHAT_TOKENS, round(6_300 * rng.lognormvariate(-0.5, 1.0))))
        blocks += self.ids.take(added // BLOCK_TOKENS)
        if len(blocks) * BLOCK_TOKENS + MIN_CHAT_TOKENS < MAX_CHAT_TOKENS:
            self.sessions.append(blocks)
        num_tokens = len(blocks) * BLOCK_TOKENS + added % BLOCK_TOKENS
        return blocks, num_tokens, min(1_048, max(8, round(365 * rng.lognormvariate(-0.18, 0.6))))

    def tool(self) -> tuple[tuple[int, ...], int, int]:
        blocks = tuple(range(1, 1 + TOOL_PROMPT_BLOCKS))
        num_tokens = self.rng.randint(6_170, 9_500)
        output = 3 if self.rng.random() < 0.75 else self.rng.randint(24, 53)
        return self._own(blocks, num_tokens), num_tokens, output

    def short(self) -> tuple[tuple[int, ...], int, int]:
        first = 1 + TOOL_PROMPT_BLOCKS
        num_tokens = self.rng.randint(3_000, 3_500)
        blocks = self._own(tuple(range(first, first + SHORT_PROMPT_BLOCKS)), num_tokens)
        return blocks, num_tokens, self.rng.randint(16, 24)

    def _own(self, blocks: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
        return blocks + self.ids.take(num_tokens // BLOCK_TOKENS - len(blocks))


def make_toolagent(settings: ToolAgentSettings) -> list[TraceRequest]:
    """Deterministic in its settings."""
    maker = _Maker(random.Random(settings.seed), settings.turn_share)
    requests = []
    now_s = 0.0
    for _ in range(settings.num_requests):
        now_s += maker.rng.expovariate(settings.requests_per_s)
        kind = maker.rng.random()
        if kind < CHAT_SHARE:
            blocks, num_tokens, output = maker.chat()
        elif kind < CHAT_SHARE + TOOL_SHARE:
            blocks, num_tokens, output = maker.tool()
        else:
            blocks, num_tokens, output = maker.short()
        arrival_s = now_s // BATCH_S * BATCH_S
        scaled = max(1, round(output * settings.output_scale))
        requests.append(TraceRequest(arrival_s, num_tokens, scaled, blocks))
    return requests
