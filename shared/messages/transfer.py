"""Asked of one node's transfer service by other nodes' transfer services."""

from typing import Annotated

from pydantic import Field

from shared.messages.common import NodeRef, PackedKeys, Token, Traceparent
from shared.messages.envelope import Message, Part
from shared.messages.reports import State


class KvGeometry(Part):
    """The bytes of a block: `[layer][K,V][token][kv_head][head_dim]`."""

    num_layers: Annotated[int, Field(ge=1)]
    block_tokens: Annotated[int, Field(ge=1)]
    token_bytes: Annotated[int, Field(ge=1)]
    """Bytes of one token in one plane (K or V) of one layer."""

    @property
    def plane_bytes(self) -> int:
        return self.block_tokens * self.token_bytes

    @property
    def layer_bytes(self) -> int:
        return 2 * self.plane_bytes

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_bytes


class LocalDescriptor(Part):
    """How a peer on the same host maps the segment. Valid only if the nonce in it is equal."""

    path: str
    nonce: bytes
    num_slots: int
    block_bytes: int
    data_offset: int


class TcpDescriptor(Part):
    """Where peers on other hosts open streams. `capability` is proven on the stream, never sent."""

    host: str
    port: Annotated[int, Field(ge=1, le=65_535)]
    capability: bytes


class RdmaDescriptor(Part):
    """What a one-sided reader needs: the UCX worker's address, two registered regions, the keys."""

    worker_address: bytes
    table_address: int
    table_rkey: bytes
    data_address: int
    data_rkey: bytes
    num_slots: int
    block_bytes: int


class DescribeReply(Message):
    """What a node offers to peers, by transport."""

    node: NodeRef
    root: bytes
    geometry: KvGeometry | None = None
    local: LocalDescriptor | None = None
    tcp: TcpDescriptor | None = None
    rdma: RdmaDescriptor | None = None


class LeaseRequest(Message):
    """Hold what is readable of a chain from `start` on, for `holder`, at most `ttl_ms`."""

    holder: NodeRef
    incarnation: Token
    """Of the node that is asked; another one answers with an error."""
    root: bytes
    keys: PackedKeys
    """From the first block of the chain on: a block that is read from the SSD needs its parents."""
    start: Annotated[int, Field(ge=0)] = 0
    """Index of the first block that is wanted."""
    ttl_ms: Annotated[int, Field(ge=1, le=60_000)] = 5_000
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 1_000
    """How long the node may read from its SSD before it answers."""
    request_id: Annotated[str, Field(max_length=128)] = ""
    traceparent: Traceparent = ""


class LeaseReply(Message):
    """Parallel lists for the run that is held; empty when its first block is not here.

    The holder stops reading at 80 % of `ttl_ms`.
    """

    lease_id: str
    slots: list[int] = []
    generations: list[int] = []
    checksums: list[int] = []
    ttl_ms: int = 0


class LeaseRelease(Message):
    lease_id: str
    bad_keys: PackedKeys = b""
    """Blocks that arrived with another checksum: the node checks its own copies again."""


class PinRequest(Message):
    """Operator: keep the leading run of `keys` in DRAM, whoever uses it, for `ttl_ms`.

    With the `pin_id` of an earlier pin: that one lasts so long from now, 0 ends it.
    """

    keys: PackedKeys = b""
    ttl_ms: Annotated[int, Field(ge=0, le=7 * 86_400_000)] = 600_000
    pin_id: str = ""
    tenant: str | None = None
    """Refused: there are no quotas by tenant."""


class PinReply(Message):
    pin_id: str
    num_blocks: int
    """Held by this pin; fewer than asked for when the node has no more."""
    pinned_blocks: int
    """By all pins of the node."""
    max_pinned_blocks: int


class DropRequest(Message):
    """Operator: the node forgets a block and everything after it, in all tiers."""

    key: Annotated[bytes, Field(min_length=16, max_length=16)]


class DropReply(Message):
    num_dram_blocks: int
    num_disk_blocks: int


class FlushRequest(Message):
    """Operator: the node forgets every block that nobody holds, and with `is_ssd` the SSD's too.

    What is leased, pinned, read or being written stays, with the blocks before it. `is_ssd` must be
    there: an empty message flushes nothing.
    """

    is_ssd: bool


class FlushReply(Message):
    num_dram_blocks: int
    num_disk_blocks: int
    kept_dram_blocks: int
    """Readable blocks that are still there: somebody holds them, or they came meanwhile."""
    kept_disk_blocks: int


class NodeDrain(Message):
    """Operator: take no new workers and copies, and hand other nodes what is worth it.

    The node stays and is read from; `is_over` ends it, and must be there: an empty message drains
    nobody.
    """

    is_over: bool
    remaining_ms: Annotated[int, Field(ge=1, le=600_000)] = 30_000
    """For handing over; the reply comes after it."""


class NodeDrainReply(Message):
    state: State
    moved_bytes: int = 0
    """What other nodes took."""


class ReplicateRequest(Message):
    """Bring the leading run of `keys` here from another node, behind what requests need."""

    keys: PackedKeys
    source: NodeRef
    remaining_ms: Annotated[int, Field(ge=1, le=600_000)] = 30_000


class ReplicateReply(Message):
    num_blocks: int
    """Of `keys`, how many are here now."""
    moved_bytes: int = 0
    seconds: float = 0.0
