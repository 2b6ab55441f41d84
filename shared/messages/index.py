"""Asked of cache-index, and the residency events that feed it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from shared.messages.common import NodeRef, PackedKeys, Token
from shared.messages.envelope import Message, Part

Tier = Literal["dram", "disk"]
"""The best place that a node has a block in."""


class MatchRequest(Message):
    """Which nodes hold how much of this chain, from its root."""

    root: bytes
    chain: PackedKeys
    exclude_nodes: list[str] = []


class NodeMatch(Part):
    node: NodeRef
    num_blocks: int
    """Leading blocks of the chain on this node, DRAM and SSD."""
    dram_blocks: int
    """Of these, how many from the start are in DRAM without a gap."""


class MatchReply(Message):
    """Nodes with at least one block, the longest match first."""

    nodes: list[NodeMatch] = []


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
    keys: PackedKeys
    tier: Tier = "dram"
    """Where they are now; a block that was in another tier has moved."""


class RemovedRun(Part):
    """Blocks that are no longer readable; descendants are always in the same event."""

    heads: PackedKeys
    """For each of `keys` the key of the first block of its segment."""
    keys: PackedKeys


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
    index_epoch: str
    nodes: dict[str, int] = {}
    """Blocks by node."""
    num_blocks: int = 0
    is_redis_up: bool = True
    resyncs_total: int = 0
    gaps_total: int = 0
