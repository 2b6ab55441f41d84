"""Messages in, core calls, replies out. Match never waits for Redis."""

from collections.abc import Callable
from typing import Any

from services.cache_index.mirror import Mirror
from services.cache_index.node_registry import NodeLease
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.resync import Resyncer
from services.cache_index.writer import IndexWriter
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.common import Empty, ErrorCode, NodeRef
from shared.messages.index import (
    ClaimFormat,
    ClaimReply,
    IndexStats,
    MatchReply,
    MatchRequest,
    NodeLeaseReply,
    NodeMatch,
    NodeSeen,
    RegisterNode,
    RenewNode,
    ResidencyEvent,
)
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.micro import Endpoint


class Handlers:
    def __init__(
        self,
        bus: Bus,
        store: RedisStore,
        mirror: Mirror,
        writer: IndexWriter,
        resyncer: Resyncer,
        clock: Callable[[], float],
        poke_writer: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._store = store
        self._mirror = mirror
        self._writer = writer
        self._resyncer = resyncer
        self._clock = clock
        self._poke_writer = poke_writer

    # --- plain subscriptions -------------------------------------------------------------------
    def on_event(self, event: ResidencyEvent) -> None:
        for applied in self._mirror.on_event(event):
            self._writer.add(applied.node, applied)
        self._resyncer.want_if_behind(event.node)

    def on_node_seen(self, seen: NodeSeen) -> None:
        lease = NodeLease(
            node=seen.node,
            incarnation=seen.incarnation,
            root=seen.root,
            registration=seen.registration,
            index_epoch=seen.index_epoch,
            lease_s=seen.lease_ms / 1e3,
        )
        change = self._mirror.see_node(lease, seen.seq, self._clock())
        if change in ("new", "registered_again"):
            self._poke_writer()
        self._resyncer.want_if_behind(seen.node)

    # --- questions -----------------------------------------------------------------------------
    async def match(self, request: MatchRequest) -> MatchReply:
        if len(request.chain) % KEY_BYTES:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"chain: {len(request.chain)} bytes are no whole keys of {KEY_BYTES}",
                field="chain",
            )
        found = self._mirror.match(request.root, request.chain, self._clock())
        return MatchReply(
            nodes=[
                NodeMatch(
                    node=NodeRef(id=match.node, incarnation=match.incarnation),
                    num_blocks=match.num_blocks,
                    dram_blocks=match.dram_blocks,
                )
                for match in found
                if match.node not in request.exclude_nodes
            ]
        )

    async def register_node(self, request: RegisterNode) -> NodeLeaseReply:
        try:
            number = await self._store.register(request.node, request.incarnation, request.root)
        except StoreAway as error:
            raise _away(error) from error
        epoch = self._store.epoch
        if number is None:
            return NodeLeaseReply(is_current=False, number=0, index_epoch=epoch)
        await self._tell(
            NodeSeen(
                node=request.node,
                incarnation=request.incarnation,
                root=request.root,
                registration=number,
                index_epoch=epoch,
                lease_ms=request.lease_ms,
            )
        )
        return NodeLeaseReply(is_current=True, number=number, index_epoch=epoch)

    async def renew_node(self, request: RenewNode) -> NodeLeaseReply:
        """Answered from memory. An unknown node gets no epoch, so that it registers (again)."""
        entry = self._mirror.registry.get(request.node)
        lease = None if entry is None else entry.lease
        if lease is None or lease.incarnation != request.incarnation:
            return await self._renew_unknown(request)
        await self._tell(
            NodeSeen(
                node=request.node,
                incarnation=request.incarnation,
                root=lease.root,
                registration=lease.registration,
                index_epoch=lease.index_epoch,
                seq=request.seq,
                lease_ms=request.lease_ms,
            )
        )
        return NodeLeaseReply(
            is_current=True, number=lease.registration, index_epoch=self._store.epoch
        )

    async def _renew_unknown(self, request: RenewNode) -> NodeLeaseReply:
        try:
            record = await self._store.node(request.node)
        except StoreAway:
            record = None  # whose the name is cannot be known now; registering will tell
        if record is not None and record.incarnation != request.incarnation:
            return NodeLeaseReply(
                is_current=False, number=record.registration, index_epoch=self._store.epoch
            )
        return NodeLeaseReply(is_current=True, number=0, index_epoch="")

    async def _tell(self, seen: NodeSeen) -> None:
        self.on_node_seen(seen)
        await self._bus.publish(subjects.INDEX_NODE_SEEN, seen)

    async def claim_format(self, request: ClaimFormat) -> ClaimReply:
        try:
            current = await self._store.claim_format(request.model, request.kv_format)
        except StoreAway as error:
            raise _away(error) from error
        problem = format_problem(request.model, request.kv_format, current)
        return ClaimReply(is_accepted=not problem, current=current, problem=problem)

    async def stats(self, _: Empty) -> IndexStats:
        nodes = self._mirror.blocks_by_node()
        return IndexStats(
            index_epoch=self._store.epoch,
            nodes=nodes,
            num_blocks=sum(nodes.values()),
            is_redis_up=self._store.is_up,
            resyncs_total=self._resyncer.resyncs_total,
            gaps_total=self._mirror.gaps_total,
        )

    def endpoints(self) -> list[Endpoint[Any, Any]]:
        return [
            Endpoint(
                "match",
                subjects.INDEX_MATCH,
                MatchRequest,
                MatchReply,
                self.match,
                "Which nodes hold how much of a chain",
            ),
            Endpoint(
                "register_node",
                subjects.INDEX_REGISTER_NODE,
                RegisterNode,
                NodeLeaseReply,
                self.register_node,
                "A transfer service starts",
            ),
            Endpoint(
                "renew_node",
                subjects.INDEX_RENEW_NODE,
                RenewNode,
                NodeLeaseReply,
                self.renew_node,
                "A transfer service lives",
            ),
            Endpoint(
                "claim_format",
                subjects.INDEX_CLAIM_FORMAT,
                ClaimFormat,
                ClaimReply,
                self.claim_format,
                "Set or compare the kv_format of a model",
            ),
            Endpoint(
                "stats",
                subjects.INDEX_STATS,
                Empty,
                IndexStats,
                self.stats,
                "What this cache-index knows",
            ),
        ]


def format_problem(model: str, mine: dict[str, Any], current: dict[str, Any]) -> str:
    """Empty when equal, else what differs and the operator's way out."""
    differing = [
        f"{name}: {mine.get(name)!r} != {current.get(name)!r}"
        for name in sorted(mine.keys() | current.keys())
        if mine.get(name) != current.get(name)
    ]
    if not differing:
        return ""
    return (
        f"model {model} is served with another kv_format here: {'; '.join(differing)}. Start this "
        "instance with the same settings, serve it under another model name, or, to change the "
        "format: stop all instances and transfer services of the model and run "
        f"redis-cli HDEL 'mp:{{formats}}' '{model}'"
    )


def _away(error: StoreAway) -> ServiceError:
    return ServiceError(
        ErrorCode.INTERNAL,
        f"the index cannot reach Redis now ({error}); try again",
        is_retryable=True,
        retry_after_s=0.5,
    )
