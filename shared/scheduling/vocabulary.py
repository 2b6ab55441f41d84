"""The words of placement: what is asked, what is seen, what is decided. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.kv.ids import KEY_BYTES
from shared.scheduling.slo import NO_SLO, Slo

Role = Literal["prefill", "decode"]
State = Literal["starting", "ready", "draining"]
Priority = Literal["low", "normal", "high"]
InstanceKey = tuple[str, str]
"""(id, incarnation): names one incarnation of an instance."""


@dataclass(frozen=True, slots=True)
class ExpectedPrefix:
    """Leading blocks of a chain that an instance is going to have computed in so many seconds."""

    instance: InstanceKey
    num_blocks: int
    eta_s: float


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One attempt of a request that wants a prefill and, as a rule, a decode instance."""

    request_id: str
    attempt: int
    gateway: str
    gateway_incarnation: str
    model: str
    num_tokens: int
    max_tokens: int
    chain: bytes = b""
    use_cache: bool = True
    """Whether cached blocks may be read for it."""
    publishes: bool = True
    """Whether others may read the blocks that are computed for it."""
    needs_decode: bool = True
    """Not for an answer that ends with the prefill: of one token, or of none."""
    exclude: tuple[str, ...] = ()
    """Incarnations that shall not be chosen."""
    prefill: str | None = None
    decode: str | None = None
    policy: str | None = None
    remaining_s: float = 30.0
    slo: Slo = NO_SLO
    """What the caller asks for; the deployment's own targets hold beside it."""
    priority: Priority = "normal"
    expected: tuple[ExpectedPrefix, ...] = ()
    """Where a part of the prompt is being computed for another request."""
    has_run: bool = False
    """Its run goes with the question: it starts where a prefill instance accepts."""

    @property
    def room_tokens(self) -> int:
        """What decode must have room for at the most."""
        return self.num_tokens + self.max_tokens

    def admitted_tokens(self, admit_tokens: int) -> int:
        """What must be free at a decode instance that counts so many tokens of an answer."""
        return self.num_tokens + min(self.max_tokens, admit_tokens or self.max_tokens)

    @property
    def num_blocks(self) -> int:
        return len(self.chain) // KEY_BYTES


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """Leading blocks of a chain that one node incarnation holds."""

    node: str
    incarnation: str
    num_blocks: int
    disk_blocks: int = 0
    """Of these, how many must be read from disk first."""


@dataclass(frozen=True, slots=True)
class InstanceAddress:
    """One incarnation of an instance and its node, as messages name it."""

    id: str
    incarnation: str
    node: str


@dataclass(frozen=True, slots=True)
class InstanceView:
    """What an instance said of itself; load that was placed since is added by the view."""

    role: Role
    id: str
    incarnation: str
    node: str
    node_incarnation: str
    state: State
    model: str
    root: bytes
    kv_format: Mapping[str, Any]
    block_tokens: int
    grid_tokens: int
    block_bytes: int
    context_tokens: int
    queued_requests: int = 0
    queued_tokens: int = 0
    """Of prompts: prefill has still to compute them; decode was promised them."""
    running: int = 0
    free_tokens: int = 0
    capacity_tokens: int = 0
    context_in_batch_tokens: int = 0
    admit_tokens: int = 0
    """Decode: tokens of an answer that must have room when it is admitted; 0: all it may have."""
    expected_start_s: float = 0.0
    """Prefill: seconds from now until a request that comes now would start."""
    discipline: str = "fifo"
    work_by_size_s: tuple[float, ...] = ()
    """Prefill: its queue by size class (queue_discipline); empty: only the start is known."""
    prompts_by_size: tuple[float, ...] = ()

    @property
    def key(self) -> InstanceKey:
        return (self.id, self.incarnation)

    @property
    def address(self) -> InstanceAddress:
        return InstanceAddress(self.id, self.incarnation, self.node)

    def usable_tokens(self, num_blocks: int, num_tokens: int) -> int:
        """Tokens of a prompt that a match of `num_blocks` saves: whole grid chunks only, and the
        last chunk is always computed, for it gives token 0."""
        grid = self.grid_tokens
        matched = num_blocks * self.block_tokens // grid * grid
        return max(0, min(matched, (num_tokens - 1) // grid * grid))


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """Seconds by stage, as a candidate is predicted to take them."""

    queue_s: float = 0.0
    load_s: float = 0.0
    compute_s: float = 0.0
    handoff_s: float = 0.0
    tbt_s: float = 0.0
    overhead_s: float = 0.0
    """Of TTFT, what is none of the above: HTTP, placement, messages."""
    tbt_scale: float = 1.0
    """By how much learning had changed the prior's `tbt_s` when this was predicted."""

    @property
    def ttft_s(self) -> float:
        """Loading runs while the request queues."""
        return max(self.queue_s, self.load_s) + self.compute_s + self.overhead_s

    def queued_for(self, queue_s: float) -> "PredictedTimes":
        """The same in another queue. Written out: `replace` takes eight times as long."""
        return PredictedTimes(
            queue_s=queue_s,
            load_s=self.load_s,
            compute_s=self.compute_s,
            handoff_s=self.handoff_s,
            tbt_s=self.tbt_s,
            overhead_s=self.overhead_s,
            tbt_scale=self.tbt_scale,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Where a prefix can be fetched from."""

    node: str
    incarnation: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One prefill instance, priced. A policy orders candidates by `cost_s` and its own rule."""

    prefill: InstanceView
    local_blocks: int
    """Leading blocks on its own node."""
    cached_tokens: int
    """Tokens that need not be computed, fetched ones included."""
    sources: tuple[Source, ...]
    """Nodes that the missing blocks are fetched from, in equal parts as a rule; the first is
    enough when one cannot take several."""
    predicted: PredictedTimes
    cost_s: float
    reason: str = ""
    """Why it was not taken; empty for the winner."""

    @property
    def source(self) -> Source | None:
        return self.sources[0] if self.sources else None

    @property
    def remote_blocks(self) -> int:
        if self.source is None:
            return 0
        return max(0, self.source.num_blocks - self.local_blocks)

    def queued_for(self, queue_s: float) -> "Candidate":
        return Candidate(
            prefill=self.prefill,
            local_blocks=self.local_blocks,
            cached_tokens=self.cached_tokens,
            sources=self.sources,
            predicted=self.predicted.queued_for(queue_s),
            cost_s=self.cost_s,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Where an attempt shall run, and what was weighed."""

    winner: Candidate
    decode: InstanceView | None
    """None: the answer ends with the prefill."""
    decode_source: Source | None
    predicted: PredictedTimes
    policy: str
    losers: tuple[Candidate, ...] = ()
    """The best of them."""
    counts: tuple[tuple[str, int], ...] = ()
    """Candidates by reason for losing."""
    is_started: bool = False
    """The run that went with the question goes on at the winner, for `decode`."""


RefusalCode = Literal[
    "unknown_model", "unknown_instance", "bad_request", "no_instance", "overloaded",
    "context_exceeded",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """No placement; an expected outcome, not an error."""

    code: RefusalCode
    message: str
    field: str | None = None
    is_retryable: bool = False
    retry_after_s: float | None = None
    predicted: Slo = NO_SLO
    """When it was refused for its targets: what was predicted, and what was allowed."""
    allowed: Slo = NO_SLO
