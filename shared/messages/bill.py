"""The bill of a request: where its time and bytes went, predicted and real."""

from shared.messages.common import InstanceRef, Token
from shared.messages.envelope import Message, Part


class Times(Part):
    """Seconds by stage. `ttft_s` is less than the sum: loading overlaps queueing."""

    queue_s: float = 0.0
    load_s: float = 0.0
    """Fetching cached blocks of the prefix, remote or from disk."""
    compute_s: float = 0.0
    handoff_s: float = 0.0
    """From token 0 until the request is in the decode batch."""
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    preempted_s: float = 0.0
    """Out of the decode batch for want of room; a part of the intervals between tokens."""
    preemptions: int = 0
    """How often."""


class Reuse(Part):
    """Where the prompt's KV came from, in tokens, and the bytes that moved for it."""

    prompt_tokens: int = 0
    local_tokens: int = 0
    """Cached tokens found in the pool of the prefill instance's node."""
    remote_tokens: int = 0
    """Cached tokens fetched from another node for this request."""
    disk_tokens: int = 0
    """Of the local ones, those that were read from the node's SSD for this request."""
    disk_bytes: int = 0
    disk_s: float = 0.0
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    streamed_bytes: int = 0
    """KV moved from the prefill node to the decode node."""
    stream_s: float = 0.0
    transport: str = "none"

    @property
    def cached_tokens(self) -> int:
        return self.local_tokens + self.remote_tokens


class FinishedBill(Message):
    """The whole bill; goes to every conductor and stays for a while with the gateway."""

    request_id: Token
    attempts: int = 1
    model: str
    prefill: InstanceRef
    decode: InstanceRef
    predicted: Times
    real: Times
    reuse: Reuse
    output_tokens: int = 0


class BillRequest(Message):
    request_id: Token
