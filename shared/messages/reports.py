"""Heartbeats: what every process says of itself, twice a second while it has work."""

from typing import Annotated, Any, Literal

from pydantic import Field

from shared.messages.common import Token
from shared.messages.envelope import Message

REPORT_INTERVAL_S = 0.45
IDLE_REPORT_INTERVAL_S = 0.9
"""Of a process without work that has nothing new to say: most of what an idle cluster costs. Three
of them fit in LEASE_S."""
LEASE_S = 3.0
"""A process that was silent for this long is taken as gone."""

State = Literal["starting", "ready", "draining"]


class InstanceReport(Message):
    """A prefill or decode instance."""

    service: Literal["prefill", "decode"]
    id: Token
    incarnation: Token
    node: Token
    node_incarnation: Token
    state: State
    model: str
    root: bytes
    kv_format: dict[str, Any]
    block_tokens: int
    grid_tokens: int
    block_bytes: int
    context_tokens: int
    queued_requests: int = 0
    queued_tokens: int = 0
    """Prompt tokens promised or queued that are not computed yet."""
    running: int = 0
    free_tokens: int = 0
    """Decode: room of the device cache that is not promised."""
    capacity_tokens: int = 0
    context_in_batch_tokens: int = 0
    admit_tokens: int = 0
    """Decode: tokens of an answer that must have room when it is admitted; 0: all it may have."""
    preempted: int = 0
    """Decode: requests that are out of the device cache for want of room, their KV saved."""
    saved_tokens: int = 0
    """Decode: of KV in host memory for them."""
    preemptions_total: int = 0
    expected_start_s: float = 0.0
    """Prefill: when a request that comes now would start."""
    discipline: Literal["fifo", "shortest_first"] = "fifo"
    """Prefill: the order of its queue."""
    work_by_size_s: list[float] = []
    """Prefill: seconds of work in its queue by size class, and prompts; see queue_discipline."""
    prompts_by_size: list[float] = []

    @property
    def is_idle(self) -> bool:
        return self.queued_requests == 0 and self.running == 0


class NodeReport(Message):
    """A transfer service and its pool."""

    service: Literal["transfer"] = "transfer"
    id: Token
    incarnation: Token
    state: State
    root: bytes = b""
    block_bytes: int = 0
    slots_total: int = 0
    slots_free: int = 0
    slots_writing: int = 0
    slots_private: int = 0
    slots_sealed: int = 0
    slots_leased: int = 0
    slots_low: int = 0
    """With fewer free ones the node frees slots ahead of need, until there are `slots_high`."""
    slots_high: int = 0
    bytes_in_flight: Annotated[int, Field(ge=0)] = 0
    bytes_in_flight_by_peer: dict[str, int] = {}
    """On the way here, by the node they come from."""
    bytes_moved_by_peer: dict[str, int] = {}
    """Since the start, to here, by the node they came from."""
    resting_transports: dict[str, list[str]] = {}
    """By peer: ways to it that failed and are not tried for a moment."""
    transports: list[str] = []
    """Those that are open, the preferred one first."""
    bytes_fetched_total: int = 0
    bytes_streamed_total: int = 0
    evictions_total: int = 0
    checksum_failures_total: int = 0
    ssd_state: Literal["none", "loading", "on", "read_only", "off"] = "none"
    ssd_slots_total: int = 0
    ssd_blocks: int = 0
    ssd_bytes_read_total: int = 0
    ssd_bytes_written_total: int = 0
    ssd_dropped_total: int = 0
    """Blocks that were not written because the queue was full."""
    ssd_errors_total: int = 0
    ssd_bad_blocks_total: int = 0
    ssd_read_bytes_per_s: float = 0.0
    """Measured; 0: nothing was read yet."""
    pinned_blocks: int = 0
    attached: list[str] = []

    @property
    def is_idle(self) -> bool:
        held = self.slots_writing + self.slots_private + self.slots_leased
        return held == 0 and self.bytes_in_flight == 0


class GatewayReport(Message):
    """A gateway; instances cancel the work of one that is silent for LEASE_S."""

    service: Literal["gateway"] = "gateway"
    id: Token
    incarnation: Token
    state: State
    in_flight: int = 0
    http: str = ""
    lost_attempts: list[str] = []
    """Handles of attempts whose placement was not heard of: whoever works for one of them ends
    it. Said for a few seconds."""

    @property
    def is_idle(self) -> bool:
        return self.in_flight == 0


def is_superseded(
    report: InstanceReport | NodeReport | GatewayReport,
    by: InstanceReport | NodeReport | GatewayReport,
) -> bool:
    """Whether `report` is of one that drains while `by`, under the same name, is ready already."""
    is_other = report.incarnation != by.incarnation
    return is_other and report.state == "draining" and by.state == "ready"


class PingReply(Message):
    """Who answers on a process' own ping subject."""

    service: str
    id: str
    incarnation: str
    state: State
    bad_messages_total: int = 0
    """Messages on plain subscriptions that were none; bad questions are in `nats micro stats`."""
