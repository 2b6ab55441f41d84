"""Between a worker and the transfer service of its node, over the node's unix socket.

Frames: 4 bytes little-endian length, then msgpack of a `Call` or an `Answer`. What an attachment
holds (slots in WRITING or PRIVATE, leases) ends when it releases it or its socket closes, never by
time. Things are held under a handle (RequestRef.handle); `release` frees all of a handle at once.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.messages.common import (
    ErrorInfo,
    FetchSource,
    NodeRef,
    PackedKeys,
    RequestRef,
    Token,
    Traceparent,
)
from shared.messages.envelope import Message, Part
from shared.messages.transfer import KvGeometry, LocalDescriptor

MAX_FRAME_BYTES = 8 << 20


class Call(Message):
    """One call: `body` is the msgpack of the message that `operation` takes."""

    id: int
    operation: Literal[
        "describe", "attach", "lease", "fetch", "allocate", "wanted", "seal", "pull", "release"
    ]
    body: bytes = b""
    request_id: Annotated[str, Field(max_length=128)] = ""
    """What it is for, and the span it belongs to; empty for what serves no request."""
    traceparent: Traceparent = ""


class Answer(Message):
    id: int
    body: bytes = b""
    error: ErrorInfo | None = None


class PoolDescription(Message):
    """Answer to `describe`, before attaching."""

    node: NodeRef
    is_ready: bool
    workers: dict[str, int] = {}
    """Attached workers by role."""


class Attach(Message):
    """The first attach gives the pool its model; others must have the same root and geometry."""

    instance: Token
    incarnation: Token
    role: Literal["prefill", "decode", "both"]
    root: bytes
    geometry: KvGeometry
    max_slots: Annotated[int, Field(ge=1)] | None = None
    """Cap on WRITING and PRIVATE slots of this attachment, and on different blocks that it holds.
    None: the pool decides by its size and by `context_blocks`."""
    context_blocks: Annotated[int, Field(ge=1)] = 1
    """Blocks of the longest context."""


class AttachReply(Message):
    node: NodeRef
    max_slots: int
    """The cap that holds."""
    segment: LocalDescriptor


class Blocks(Part):
    """Parallel lists: where blocks are."""

    slots: list[int] = []
    generations: list[int] = []
    checksums: list[int] = []


class LeaseBlocks(Message):
    """Hold the leading run of `keys` (from the root) that this pool has. Verifies checksums.

    What is on the SSD comes into the pool first, as far as the time goes.
    """

    handle: str
    keys: PackedKeys
    remaining_ms: Annotated[int, Field(ge=1)] = 8_000


class FromDisk(Part):
    """Blocks that were read from the node's SSD for this call."""

    num_blocks: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


class LeaseBlocksReply(Message):
    blocks: Blocks
    from_disk: FromDisk = FromDisk()


class FetchBlocks(Message):
    """Bring the leading run of `keys` here from `source`, then hold what this pool has of it.

    What is here already is not moved; what several nodes have is read from all of them at once.
    Any failure shortens the run; it is never an error.
    """

    handle: str
    ref: RequestRef
    keys: PackedKeys
    source: FetchSource
    remaining_ms: Annotated[int, Field(ge=1)] = 10_000
    urgency: Literal["request", "background"] = "request"
    """background: nobody waits, so it takes only its share of the time."""


class FetchBlocksReply(Message):
    """`blocks` is the whole run held now; `num_local` of them were on this node before."""

    blocks: Blocks
    num_local: int
    from_disk: FromDisk = FromDisk()
    fetched_bytes: int = 0
    seconds: float = 0.0
    transport: str = "none"
    """What moved them; several are joined by +."""


class Allocate(Message):
    """`num_slots` WRITING slots, all or none (ErrorCode.OVERLOADED: none within the time).

    Those who wait are served in the order in which they asked.
    """

    handle: str
    num_slots: Annotated[int, Field(ge=1)]
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 0


class AllocateReply(Message):
    slots: list[int]
    generations: list[int]


class Wanted(Message):
    """Does a request that goes before this one wait for slots here, while this one holds some?"""

    handle: str


class WantedReply(Message):
    is_wanted: bool


class SealBlock(Part):
    """WRITING → SEALED (`key` given) or → PRIVATE (no key).

    `checksum` not 0: verify against it, else computed here.
    """

    slot: int
    generation: int
    valid_tokens: Annotated[int, Field(ge=1)]
    key: bytes = b""
    checksum: int = 0


class Seal(Message):
    """Seal a run of one chain. `start` and `chain` place sealed blocks in their chain.

    `chain` is the whole chain from the root up to the last sealed block. Sealed blocks stay held
    by the handle until it is released. A key that is sealed already: its slot here is freed and
    the answer names the slot that holds the key.
    """

    handle: str
    start: Annotated[int, Field(ge=0)]
    chain: PackedKeys = b""
    blocks: list[SealBlock]


class SealReply(Message):
    """Parallel to the blocks; a block whose checksum did not match is an error, none is sealed."""

    blocks: Blocks


class PullItem(Part):
    """Copy layers of a peer's slot into an own WRITING slot."""

    peer_slot: int
    peer_generation: int
    slot: int
    valid_tokens: Annotated[int, Field(ge=1)]
    first_layer: Annotated[int, Field(ge=0)]
    end_layer: Annotated[int, Field(ge=1)]


class Pull(Message):
    """Batched; fails as a whole (ErrorCode.PEER_LOST, KV_LOST), the slots stay WRITING."""

    handle: str
    node: NodeRef
    items: list[PullItem]
    remaining_ms: Annotated[int, Field(ge=1)] = 10_000


class PullReply(Message):
    moved_bytes: int
    seconds: float
    transport: str


class Release(Message):
    """Free or unlease everything held under the handle by this attachment."""

    handle: str
