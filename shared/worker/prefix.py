"""Holds the cached prefix of a prompt in the node's pool. Any doubt shortens it, none fails."""

import logging
from dataclasses import dataclass, field

from shared.messages.common import FetchSource, RequestRef
from shared.messages.pool import Blocks, FromDisk
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.telemetry.tracing import Value
from shared.worker.pool_client import PoolClient

log = logging.getLogger("moonpool.worker")
FETCH_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The leading blocks of a chain that are held, and what it took to have them here."""

    blocks: Blocks = field(default_factory=Blocks)
    num_local: int = 0
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    transport: str = "none"
    load_s: float = 0.0
    from_disk: FromDisk = field(default_factory=FromDisk)
    """Of the local ones."""

    @property
    def num_blocks(self) -> int:
        return len(self.blocks.slots)

    @property
    def told(self) -> dict[str, Value]:
        """What a trace says of it."""
        return {
            "blocks": self.num_blocks,
            "local_blocks": self.num_local,
            "fetched_bytes": self.fetched_bytes,
            "transport": self.transport,
        }


async def hold_prefix(
    pool: PoolClient,
    ref: RequestRef,
    chain: bytes,
    source: FetchSource | None,
    remaining_s: float = FETCH_TIMEOUT_S,
) -> Prefix:
    """Lease what the pool has of `chain`; with a `source`, fetch what it has more first."""
    if not chain:
        return Prefix()
    start_s = monotonic_s()
    remaining_ms = max(int(min(remaining_s, FETCH_TIMEOUT_S) * 1000), 1)
    try:
        if source is None or source.node.id == pool.node.id:
            leased = await pool.hold(ref.handle, chain, remaining_ms)
            return Prefix(
                blocks=leased.blocks,
                num_local=len(leased.blocks.slots),
                load_s=monotonic_s() - start_s,
                from_disk=leased.from_disk,
            )
        reply = await pool.fetch(ref.handle, ref, chain, source, remaining_ms)
    except ServiceError as error:
        log.warning("%s: nothing cached is used: %s", ref.handle, error)
        return Prefix(load_s=monotonic_s() - start_s)
    return Prefix(
        blocks=reply.blocks,
        num_local=reply.num_local,
        fetched_bytes=reply.fetched_bytes,
        fetch_s=reply.seconds,
        transport=reply.transport,
        from_disk=reply.from_disk,
        load_s=monotonic_s() - start_s,
    )
