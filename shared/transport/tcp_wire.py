"""What is said on a stream between two nodes: greeting with proofs, requests, answers. No sockets.

Greeting: the server sends a nonce; the client answers with names, a nonce and its proof; the server
with a status and its own proof. Both prove that they know the capability that the server's node
gave over the control plane; it is never sent. Then the client asks, one request after the other.
Bytes read in place leave from the slots themselves: what changes there on their way changes them,
so whether the slots still hold is asked once they are here.

    read    request, slices →  ← number n that hold now, their bytes, number of these that still do
    read in place
            request, slices →  ← number n that hold now, their bytes
            n, all are here →  ← number of these that still hold
    write   request, slices →  ← number n that may be written, bytes of these →  ← number written
"""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from shared.transport.base import Slice

MAGIC = b"MPKV"
VERSION = 2
NONCE_BYTES = 32
PROOF_BYTES = 32
CAPABILITY_BYTES = 32
MAX_NAMES_BYTES = 1024
MAX_SLICES = 4096
"""Of one request."""

SERVER_HELLO = struct.Struct(f"<4sH{NONCE_BYTES}s")
CLIENT_HELLO = struct.Struct(f"<4sHH{NONCE_BYTES}s{PROOF_BYTES}s")
"""Then the names, as many bytes as the third field says."""
SERVER_ANSWER = struct.Struct(f"<B{PROOF_BYTES}s")
REQUEST = struct.Struct("<BxxxI")
"""Operation, number of slices."""
COUNT = struct.Struct("<I")
WIRE_SLICE = np.dtype(
    [("slot", "<u4"), ("generation", "<u8"), ("offset", "<u8"), ("num_bytes", "<u8")]
)
WireSlices = npt.NDArray[np.void]


class WireError(Exception):
    """The other side does not speak this protocol, or not as one that may speak to us."""


class Status(IntEnum):
    """The end of a greeting."""

    WELCOME = 0
    NO_PROOF = 1
    OTHER_INCARNATION = 2
    FULL = 3


WHY = {
    Status.NO_PROOF: "it refuses our capability: it started anew, or another cluster has its port",
    Status.OTHER_INCARNATION: "another incarnation is there now",
    Status.FULL: "it has as many streams as it takes",
}


class Operation(IntEnum):
    READ = 1
    WRITE = 2
    READ_IN_PLACE = 3


@dataclass(frozen=True, slots=True)
class Names:
    """Who calls, and whom it means to call."""

    node: str
    incarnation: str
    peer_node: str
    peer_incarnation: str

    def packed(self) -> bytes:
        parts = (self.node, self.incarnation, self.peer_node, self.peer_incarnation)
        return b"\0".join(part.encode() for part in parts)

    @classmethod
    def unpacked(cls, raw: bytes) -> "Names":
        try:
            return cls(*(part.decode() for part in raw.split(b"\0")))
        except (TypeError, UnicodeDecodeError):
            raise WireError("the greeting names nobody") from None


def proof(
    capability: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes, names: bytes
) -> bytes:
    """Of the capability, by one side (b"client", b"server"), for this very greeting."""
    text = b"\0".join((MAGIC, side, names)) + server_nonce + client_nonce
    return hmac.new(capability, text, hashlib.sha256).digest()


def is_proof(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)


def parse_server_hello(raw: bytes) -> bytes:
    """The server's nonce."""
    magic, version, nonce = SERVER_HELLO.unpack(raw)
    if magic != MAGIC:
        raise WireError("no moonpool node listens there")
    if version != VERSION:
        raise WireError(f"it speaks version {version}, this node {VERSION}")
    return bytes(nonce)


def packed_request(operation: Operation, slices: Sequence[Slice]) -> bytes:
    wire = np.array(
        [(part.peer_slot, part.peer_generation, part.offset, part.num_bytes) for part in slices],
        dtype=WIRE_SLICE,
    )
    return REQUEST.pack(operation, len(slices)) + wire.tobytes()


def parse_request(raw: bytes | bytearray) -> tuple[Operation, int]:
    operation, count = REQUEST.unpack(raw)
    if not 0 < count <= MAX_SLICES:
        raise WireError(f"a request of {count} slices, 1 to {MAX_SLICES} are allowed")
    try:
        return Operation(operation), count
    except ValueError:
        raise WireError(f"operation {operation} is unknown") from None


def parse_slices(raw: bytes | bytearray, *, num_slots: int, block_bytes: int) -> WireSlices:
    """WireError when one lies outside of the slots: whoever asks has another geometry."""
    slices = np.frombuffer(raw, dtype=WIRE_SLICE)
    size = np.uint64(block_bytes)
    is_inside = (
        (slices["slot"] < num_slots)
        & (slices["offset"] < size)
        & (slices["num_bytes"] > 0)
        & (slices["num_bytes"] <= size - np.minimum(slices["offset"], size))
    )
    if not is_inside.all():
        raise WireError("a slice is not within a slot")
    return slices


def leading_that_hold(slices: WireSlices, generations: npt.NDArray[np.uint64]) -> int:
    """How many slices, from the first, still are in the use that they name."""
    differs = generations[slices["slot"]] != slices["generation"]
    return int(np.argmax(differs)) if differs.any() else len(slices)
