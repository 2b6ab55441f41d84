"""Asked of cache-index, and the residency events that feed it."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from shared.kv.ids import KEY_BYTES
from shared.messages.common import (
    InstanceRef,
    NodeRef,
    PackedKeys,
    RequestRef,
    Token,
    Traceparent,
)
from shared.messages.envelope import Message, Part

Tier = Literal["dram", "disk"]
"""The best place that a node has a block in."""


def _whole(keys: bytes) -> bytes:
    if len(keys) % KEY_BYTES:
        raise ValueError(f"{len(keys)} bytes are no whole keys of {KEY_BYTES}")
    return keys


WholeKeys = Annotated[PackedKeys, AfterValidator(_whole)]
"""Checked on arrival: a bad event is one that is missing, and the inventory makes it good."""


class MatchRequest(Message):
    """Which nodes hold how much of this chain, from its root."""

    root: bytes
    chain: PackedKeys
    exclude_nodes: list[str] = []
    request_id: Annotated[str, Field(max_length=128)] = ""
    traceparent: Traceparent = ""


class NodeMatch(Part):
    node: NodeRef
    num_blocks: int
    """Leading blocks of the chain on this node, DRAM and SSD."""
    dram_blocks: int
    """Of these, how many from the start are in DRAM without a gap."""


class ExpectedMatch(Part):
    """Leading blocks of the chain that an instance will have once it has computed them.

    Nothing can be fetched from there yet.
    """

    instance: InstanceRef
    num_blocks: int
    eta_ms: int
    """Until then, as the instance last said."""


class MatchReply(Message):
    """Nodes with at least one block, the longest match first."""

    nodes: list[NodeMatch] = []
    expected: list[ExpectedMatch] = []
    """Where a longer part of the chain than is there now will be."""


class RegisterNode(Message):
    """A transfer service that starts; its incarnation becomes the node's current one."""

    node: Token
    incarnation: Token
    root: bytes
    lease_ms: Annotated[int, Field(ge=100)] = 3_000


class RenewNode(Message):
    """Heartbeat; also carries the last event sequence, so that a lost last event shows."""

    node: Token
    incarnation: Token
    seq: int
    lease_ms: Annotated[int, Field(ge=100)] = 3_000


class NodeLeaseReply(Message):
    """`is_current` false: another incarnation took the name, this one is void."""

    is_current: bool
    number: int
    index_epoch: str
    """Changes when the index lost its store: the node must register again."""


class NodeSeen(Message):
    """Between cache-indexes: one of them registered or renewed this node, all extend its lease.

    Within one `index_epoch` a higher `registration` is the later one.
    """

    node: Token
    incarnation: Token
    root: bytes
    registration: int
    index_epoch: str
    seq: int | None = None
    """Last event sequence of the node; None: it did not say."""
    lease_ms: int


class StoredRun(Part):
    """Consecutive blocks of one chain that became readable on a node."""

    start: Annotated[int, Field(ge=0)]
    """Index in the chain of the first block of `keys`."""
    head: bytes
    """Key of the first block of the SEGMENT_BLOCKS-segment that block `start` is in."""
    parent: bytes
    """Key before the first of `keys`; empty when start is 0."""
    keys: WholeKeys
    tier: Tier = "dram"
    """Where they are now; a block that was in another tier has moved."""


class RemovedRun(Part):
    """Blocks that are no longer readable; descendants are always in the same event."""

    heads: WholeKeys
    """For each of `keys` the key of the first block of its segment."""
    keys: WholeKeys


class ResidencyEvent(Message):
    """One change of what a node holds. `seq` counts from 1 per incarnation without gaps."""

    node: Token
    incarnation: Token
    root: bytes
    seq: Annotated[int, Field(ge=1)]
    stored: list[StoredRun] = []
    removed: list[RemovedRun] = []


class InventoryRequest(Message):
    """A page of what the node holds; start with cursor 0."""

    cursor: Annotated[int, Field(ge=0)] = 0


class InventoryReply(Message):
    """Pages are taken in one order; `seq` is the event sequence this page is true at."""

    incarnation: Token
    root: bytes
    seq: int
    stored: list[StoredRun] = []
    next_cursor: int | None = None


class Expected(Message):
    """A prefill instance accepted a prompt, or has computed more of it (`done_blocks`).

    Of its chain these blocks will be readable on its node. Void after `ttl_ms`, and at once when
    `is_over`: all are sealed, or it was cancelled.
    """

    ref: RequestRef
    instance: InstanceRef
    root: bytes
    chain: PackedKeys
    done_blocks: Annotated[int, Field(ge=0)]
    """Leading blocks that are there already."""
    start_ms: Annotated[int, Field(ge=0)] = 0
    """Until it goes on computing."""
    eta_ms: Annotated[int, Field(ge=0)] = 0
    """Until the last block of `chain` is there."""
    ttl_ms: Annotated[int, Field(ge=1)] = 2_000
    is_over: bool = False


class PrefixUse(Part):
    """Uses of a prefix. Prefixes are counted at lengths of 1, 2, 4, 8... blocks."""

    root: bytes
    keys: PackedKeys
    """The keys at these lengths, up to the prefix' own."""
    uses: Annotated[float, Field(ge=0)]


class Heat(Message):
    """Between cache-indexes: what one of them was asked for since its last batch."""

    index: Token
    prefixes: list[PrefixUse] = []


class HotRequest(Message):
    limit: Annotated[int, Field(ge=1, le=512)] = 20


class HotPrefix(Part):
    root: bytes
    key: bytes
    """Of the last block."""
    num_blocks: int
    uses_per_s: float
    nodes: list[str] = []
    """Who holds it now."""


class HotReply(Message):
    """The prefixes that are used most, all cache-indexes together, decayed over a minute."""

    prefixes: list[HotPrefix] = []


class HoldersRequest(Message):
    root: bytes
    key: Annotated[bytes, Field(min_length=16, max_length=16)]


class Holder(Part):
    node: NodeRef
    tier: Tier


class HoldersReply(Message):
    """Live nodes that hold one block, by name."""

    holders: list[Holder] = []


class CopiesRequest(Message):
    """How many live nodes but the one that asks hold each of these blocks."""

    root: bytes
    node: Token
    """Who asks; its own copies do not count."""
    keys: Annotated[PackedKeys, Field(max_length=16 * 1_024)]


class CopiesReply(Message):
    """One count for each key; 255 stands for more."""

    num_copies: bytes


class Lead(Message):
    """Who acts for all of its kind: be that one, or stay it, for `lease_ms`; 0 ends it."""

    task: Token
    holder: Token
    lease_ms: Annotated[int, Field(ge=0, le=60_000)] = 6_000


class LeadReply(Message):
    is_leader: bool


class ContentsRequest(Message):
    """Of one cache-index: what its mirror, or Redis, has of every node."""

    source: Literal["mirror", "redis"] = "mirror"


class NodeContents(Part):
    node: NodeRef
    seq: int
    """The event it is true at."""
    num_blocks: int
    digest: str
    """Does not depend on the order of the blocks."""


class ContentsReply(Message):
    index: Token
    index_epoch: str
    nodes: list[NodeContents] = []


class PrintsRequest(Message):
    """Of one cache-index: a page of the fingerprints it has of a node; start with cursor 0."""

    source: Literal["mirror", "redis"] = "mirror"
    node: Token
    cursor: Annotated[int, Field(ge=0)] = 0


class PrintsReply(Message):
    """`prints` are the first 8 bytes of keys, packed. Void (asked too late): begin again."""

    prints: bytes = b""
    next_cursor: int | None = None
    is_void: bool = False


class ClaimFormat(Message):
    """The first ready instance of a model sets its kv_format; others must have the same."""

    model: str
    instance: Token
    kv_format: dict[str, Any]


class ClaimReply(Message):
    is_accepted: bool
    current: dict[str, Any]
    problem: str = ""
    """Refused: which fields differ and what the operator can do."""


class IndexStats(Message):
    """What one cache-index knows and has seen since it started."""

    index: str = ""
    index_epoch: str
    nodes: dict[str, int] = {}
    """Blocks by node."""
    num_blocks: int = 0
    """Replicas; a block on two nodes counts twice."""
    num_keys: int = 0
    """Different blocks."""
    mirror_bytes: int = 0
    mirror_fill: float = 0.0
    """Of what the budget allows."""
    evicted_total: int = 0
    """Blocks let go because of the budget."""
    horizon: int | None = None
    """Depth class from which on blocks are not kept; None: all are."""
    redis_bytes: int | None = None
    redis_horizon: int | None = None
    redis_evicted_total: int = 0
    is_redis_up: bool = True
    num_pending: int = 0
    """Fields that wait to be written to Redis."""
    matches_total: int = 0
    events_total: int = 0
    late_events_total: int = 0
    duplicates_total: int = 0
    resyncs_total: int = 0
    gaps_total: int = 0
    num_expected: int = 0
    load_s: float = 0.0
    """What loading from Redis took at the start."""
