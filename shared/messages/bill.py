"""The bill of a request: where its time and bytes went, predicted and real."""

from collections.abc import Iterable

from pydantic import Field

from shared.messages.common import InstanceRef, Token, Traceparent
from shared.messages.envelope import Message, Part


class Times(Part):
    """Seconds by stage. `ttft_s` is less than the sum: loading overlaps queueing."""

    queue_s: float = 0.0
    load_s: float = 0.0
    """Fetching cached blocks of the prefix, remote or from disk."""
    compute_s: float = 0.0
    score_s: float = 0.0
    """Of `compute_s`, what the log probabilities of the prompt took; never predicted."""
    overhead_s: float = 0.0
    """Of TTFT, what is none of these: HTTP, placement, messages, pauses between chunks."""
    handoff_s: float = 0.0
    """From token 0 until the request is in the decode batch."""
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    tbt_scale: float = Field(default=1.0, gt=0)
    """Predicted: what learning had made of the prior's `tbt_s` by then."""
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
    hidden_bytes: int = 0
    """Of the streamed ones, those that came while prefill was still computing."""
    tail_s: float = 0.0
    """From the hand-over until the last of them was there."""
    transport: str = "none"
    """What moved any of it; several are joined by +."""

    scored_tokens: int = 0
    """Of the prompt, those whose log probabilities were asked for: all were computed, cached or
    not."""

    @property
    def cached_tokens(self) -> int:
        return self.local_tokens + self.remote_tokens


def joined_transports(names: Iterable[str]) -> str:
    """Of several moves, each named as in `Reuse.transport`."""
    used = {part for name in names for part in name.split("+")} - {"none"}
    return "+".join(sorted(used)) or "none"


class FinishedBill(Message):
    """The whole bill; goes to every conductor and stays for a while with the gateway."""

    request_id: Token
    attempts: int = 1
    model: str
    prefill: InstanceRef
    decode: InstanceRef | None = None
    """None: the answer ended with the prefill."""
    predicted: Times
    real: Times
    reuse: Reuse
    output_tokens: int = 0
    decode_s: float = 0.0
    """From token 0 to the last."""
    wasted_prefill_s: float = 0.0
    """Computing the prompt of a request that decode then refused (admission `baseline`)."""
    traceparent: Traceparent = ""
    tenant: str = ""
    user: str | None = None
    """As the client's `user` field named its own user."""


class BillRequest(Message):
    request_id: Token
