"""Asked of the conductor: where a request shall run, and what it knows."""

from typing import Annotated, Any, Literal

from pydantic import Field

from shared.messages.bill import Times
from shared.messages.common import (
    CacheMode,
    ErrorInfo,
    FetchSource,
    InstanceRef,
    PackedKeys,
    RequestRef,
    Targets,
    Token,
    Traceparent,
)
from shared.messages.envelope import Message, Part
from shared.messages.outcomes import KeptOutParty
from shared.messages.reports import GatewayReport, InstanceReport, NodeReport


class PlaceRequest(Message):
    """Place one attempt of a request; `explain` takes the same and places nothing."""

    ref: RequestRef
    model: str
    num_tokens: Annotated[int, Field(ge=1)]
    """Length of the prompt."""
    max_tokens: Annotated[int, Field(ge=0)]
    """0 or 1: the answer ends with the prefill, and no decode instance is taken unless the caller
    insists on one."""
    chain: PackedKeys = b""
    """Keys of the prompt's full blocks."""
    cache: CacheMode = "on"
    exclude: list[str] = []
    """Incarnations of instances that failed this request."""
    prefill: str | None = None
    """Instance id the caller insists on (admin scope)."""
    decode: str | None = None
    policy: str | None = None
    remaining_ms: Annotated[int, Field(ge=0)] = 30_000
    ttft_slo_ms: Annotated[float | None, Field(gt=0)] = None
    """Targets of this request; the deployment's own hold beside them."""
    tbt_slo_ms: Annotated[float | None, Field(gt=0)] = None
    priority: Literal["low", "normal", "high"] = "normal"
    run: bytes = b""
    """A packed `UnplacedRun`, handed on with the reservation at the prefill instance. Not of
    `explain`."""
    traceparent: Traceparent = ""


class Candidate(Part):
    """One pair that was priced and why it lost (`reason` is empty for the winner)."""

    prefill: InstanceRef
    local_blocks: int
    remote_blocks: int
    """Of the source's, those that the node itself does not hold."""
    local_tokens: int = 0
    """Tokens that it would read from its own node: of whole grid chunks, less than all blocks."""
    remote_tokens: int = 0
    """Tokens that it would fetch."""
    predicted: Times
    """Up to token 0: a decode instance is chosen for the winner alone."""
    cost: float | None = None
    """What the policy went by, in seconds (`dynamo_cost`: in blocks); None: the conductor is of an
    earlier version."""
    reason: str = ""


class Placement(Part):
    """Where an attempt runs. The instances have promised room for it."""

    prefill: InstanceRef
    decode: InstanceRef | None = None
    """None: the answer ends with the prefill."""
    local_blocks: int
    """Leading blocks of the chain that the index says are on the prefill node."""
    source: FetchSource | None
    """Fetch the prefix from here; None: use what is local and compute the rest."""
    decode_source: FetchSource | None = None
    """Where the decode node can pull the cached prefix from; None: from the prefill node."""
    local_tokens: int = 0
    remote_tokens: int = 0
    """Tokens that need not be computed, as in `Candidate`."""
    predicted: Times
    cost: float | None = None
    """What the policy went by, in seconds (`dynamo_cost`: in blocks); None: the conductor is of an
    earlier version."""
    policy: str
    is_started: bool = False
    """The run went with the question and goes on at `prefill`, for `decode`."""

    def instance(self, stage: Literal["prefill", "decode"]) -> InstanceRef | None:
        return self.prefill if stage == "prefill" else self.decode


class PredictionError(Part):
    """Errors of what was predicted, as shares of the real time."""

    num_requests: int
    p50: float
    """Of the absolute errors."""
    p90: float
    bias: float
    """Median with its sign: above 0, it takes longer than predicted."""


class PlaceReply(Message):
    placement: Placement | None = None
    refusal: ErrorInfo | None = None
    targets: Targets | None = None
    """Of a refusal for its targets: what was predicted and what was allowed."""
    losers: list[Candidate] = []
    """The best four of them."""
    counts: dict[str, int] = {}
    """Candidates by reason for losing."""


class ModelInfo(Part):
    """A model that ready instances serve."""

    name: str
    root: bytes
    """Root of its block keys: the hash of `kv_format`."""
    kv_format: dict[str, Any]
    block_tokens: int
    grid_tokens: int
    """Hits, publishing and transfer go in whole chunks of this many tokens."""
    context_tokens: int
    block_bytes: int


class ModelsReply(Message):
    models: list[ModelInfo] = []


class AskedPromise(Part):
    """One reservation that a conductor asks for."""

    model: str
    role: Literal["prefill", "decode"]
    id: Token
    incarnation: Token
    num_tokens: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=0)]
    cached_tokens: Annotated[int, Field(ge=0)] = 0


class Asked(Message):
    """Between conductors, every few milliseconds: a burst spreads as if there were one of them."""

    conductor: Token
    promises: list[AskedPromise] = []


class MissedPrefix(Part):
    """Placements that ran where a cached prefix was not."""

    model: str
    root: bytes
    chain: PackedKeys
    """The prefix, as long as some node had it."""
    had_blocks: Annotated[int, Field(ge=0)]
    """Of it, what the chosen node had."""
    block_bytes: Annotated[int, Field(ge=1)]
    paid_s: Annotated[float, Field(ge=0)]
    """What one of them paid for it in the mean: fetching, or computing again."""
    count: Annotated[int, Field(ge=1)]


class Misses(Message):
    """Between conductors: what one of them saw missed since its last batch."""

    conductor: Token
    prefixes: list[MissedPrefix] = []


class ReplicationState(Part):
    """Copies that this conductor made ahead of need, and what it knows for the next."""

    is_on: bool
    is_leader: bool = False
    """It acts; the others only keep count."""
    num_prefixes: int = 0
    running: int = 0
    copies_total: int = 0
    failed_total: int = 0
    moved_bytes_total: int = 0
    last_error: str = ""


class StateReply(Message):
    """What this conductor sees now."""

    conductor: str
    instances: list[InstanceReport] = []
    nodes: list[NodeReport] = []
    gateways: list[GatewayReport] = []
    models: list[ModelInfo] = []
    policy: str = ""
    admission: str = ""
    slos: dict[str, Targets] = {}
    """By model: the deployment's own targets (`allowed_*`), where it has any."""
    prediction_errors: dict[str, dict[str, PredictionError]] = {}
    """By model and component (ttft, queue, load, compute, handoff, tbt)."""
    replication: ReplicationState | None = None
    journal_lost_total: int = 0
    """Steps that are not in the journal: the disk was too slow, or full."""
    is_journal_on: bool = False
    quarantined: list[KeptOutParty] = []
    """Kept out by what others saw of their work, though their heartbeats are healthy."""


class ChangeReplicaRequest(Message):
    """Operator: a prefix shall be on so many nodes."""

    model: str
    chain: PackedKeys
    """From the root to the block that counts."""
    num_replicas: Annotated[int, Field(ge=0, le=1_000)]
    remaining_ms: Annotated[int, Field(ge=1, le=600_000)] = 30_000


class ChangeReplicaReply(Message):
    nodes: list[str]
    """Who has the whole prefix now, as far as this conductor was told."""
    added: list[str] = []
    dropped: list[str] = []
    failed: dict[str, str] = {}
    """Nodes that could not, and why."""
