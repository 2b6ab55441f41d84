"""Messages in, core calls, replies out. Match never waits for Redis."""

from collections.abc import Callable
from typing import Any

from services.cache_index.expected_blocks import ExpectedBlocks
from services.cache_index.hot_prefixes import HotPrefixes
from services.cache_index.mirror import Match, Mirror
from services.cache_index.node_registry import NodeLease
from services.cache_index.redis_connection import StoreAway
from services.cache_index.redis_store import RedisStore
from services.cache_index.resync import Resyncer
from services.cache_index.writer import IndexWriter
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.index import (
    ClaimFormat,
    ClaimReply,
    CopiesReply,
    CopiesRequest,
    Expected,
    ExpectedMatch,
    Heat,
    Lead,
    LeadReply,
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
from shared.telemetry import tracing


class Handlers:
    def __init__(
        self,
        index_id: str,
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
        self._id = index_id
        self.hot = HotPrefixes()
        self.expected = ExpectedBlocks()
        self._formats: dict[str, dict[str, Any]] = {}
        """Of each model, what Redis said last."""
        self.matches_total = 0

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
        if change == "new":
            self.expected.drop_node(seen.node)
        self._resyncer.want_if_behind(seen.node)

    def on_expected(self, message: Expected) -> None:
        self.expected.hear(message, self._clock())

    def on_heat(self, heat: Heat) -> None:
        if heat.index != self._id:  # our own is counted already
            self.hot.hear(heat.prefixes, self._clock())

    async def tell_heat(self) -> None:
        """What was asked of us since the last time, for the others to add."""
        prefixes = self.hot.take_unsent()
        if prefixes:
            await self._bus.publish(subjects.INDEX_HEAT, Heat(index=self._id, prefixes=prefixes))

    # --- questions -----------------------------------------------------------------------------
    async def match(self, request: MatchRequest) -> MatchReply:
        if len(request.chain) % KEY_BYTES:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"chain: {len(request.chain)} bytes are no whole keys of {KEY_BYTES}",
                field="chain",
            )
        now_s = self._clock()
        self.matches_total += 1
        with tracing.span("match", "server") as span:
            found = self._mirror.match(request.root, request.chain, now_s)
            span.set({"nodes": len(found)})
        if found:
            self.hot.use(request.root, request.chain, found[0].num_blocks, now_s)
        return MatchReply(
            expected=self._expected(request, found, now_s),
            nodes=[
                NodeMatch(
                    node=NodeRef(id=match.node, incarnation=match.incarnation),
                    num_blocks=match.num_blocks,
                    dram_blocks=match.dram_blocks,
                )
                for match in found
                if match.node not in request.exclude_nodes
            ],
        )

    def _expected(
        self, request: MatchRequest, found: list[Match], now_s: float
    ) -> list[ExpectedMatch]:
        """Where more than is there now will be."""
        if not len(self.expected):
            return []
        there = {match.node: match.num_blocks for match in found}
        return [
            ExpectedMatch(
                instance=one.instance, num_blocks=one.num_blocks, eta_ms=int(one.eta_s * 1e3)
            )
            for one in self.expected.match(request.root, request.chain, now_s)
            if one.num_blocks > there.get(one.instance.node, 0)
            and one.instance.node not in request.exclude_nodes
        ]

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
            # One that is equal to what was current changes nothing: a restart need not wait.
            if self._formats.get(request.model) != request.kv_format:
                raise _away(error) from error
            current = request.kv_format
        self._formats[request.model] = current
        problem = format_problem(request.model, request.kv_format, current)
        return ClaimReply(is_accepted=not problem, current=current, problem=problem)

    async def lead(self, request: Lead) -> LeadReply:
        try:
            is_leader = await self._store.hold_lead(request.task, request.holder, request.lease_ms)
        except StoreAway as error:
            raise _away(error) from error
        return LeadReply(is_leader=is_leader)

    async def copies(self, request: CopiesRequest) -> CopiesReply:
        if len(request.keys) % KEY_BYTES:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"keys: {len(request.keys)} bytes are no whole keys of {KEY_BYTES}",
                field="keys",
            )
        return CopiesReply(
            num_copies=self._mirror.num_copies(
                request.root, request.keys, request.node, self._clock()
            )
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
                "lead",
                subjects.INDEX_LEAD,
                Lead,
                LeadReply,
                self.lead,
                "Who acts for all of its kind, for a time",
            ),
            Endpoint(
                "copies",
                subjects.INDEX_COPIES,
                CopiesRequest,
                CopiesReply,
                self.copies,
                "How many other nodes hold each of some blocks",
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
