"""Makes as many copies of a prefix as an operator wants: asks the index, then the nodes."""

from collections.abc import Callable, Sequence

from services.conductor.heard import Heard
from shared.kv.block_keys import key_at, num_keys
from shared.messages import subjects
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.conductor import ChangeReplicaReply, ChangeReplicaRequest, ModelInfo
from shared.messages.index import MatchReply, MatchRequest
from shared.messages.reports import NodeReport
from shared.messages.transfer import DropReply, DropRequest, ReplicateReply, ReplicateRequest
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.scheduling.replica_choice import ReplicaChange, ReplicaNode, change_of

ASK_TIMEOUT_S = 2.0


class Replicas:
    def __init__(
        self,
        bus: Bus,
        nodes: Heard[NodeReport],
        models: Callable[[], Sequence[ModelInfo]],
    ) -> None:
        self._bus = bus
        self._nodes = nodes
        self._models = models

    async def change_replica(self, request: ChangeReplicaRequest) -> ChangeReplicaReply:
        deadline_s = monotonic_s() + request.remaining_ms / 1000
        change = await self._plan(request)
        names = [node.node for node in change.holders]
        reply = ChangeReplicaReply(nodes=names)
        for node in change.to_drop:
            await self._drop(node, request.chain, reply)
        missing = change.num_missing
        for node in change.to_add if change.source is not None else ():
            if missing and await self._add(node, change.source, request.chain, deadline_s, reply):
                missing -= 1
        return reply

    async def _plan(self, request: ChangeReplicaRequest) -> ReplicaChange:
        root = next((m.root for m in self._models() if m.name == request.model), None)
        if root is None:
            raise ServiceError(
                ErrorCode.UNKNOWN_MODEL, f"model: {request.model} is not served", field="model"
            )
        try:
            num_blocks = num_keys(request.chain)
        except ValueError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, str(error), field="chain") from None
        if not num_blocks:
            raise ServiceError(ErrorCode.BAD_REQUEST, "chain: has no keys", field="chain")
        match = await self._bus.request(
            subjects.INDEX_MATCH,
            MatchRequest(root=root, chain=request.chain),
            MatchReply,
            timeout_s=ASK_TIMEOUT_S,
        )
        depths = {(one.node.id, one.node.incarnation): one.num_blocks for one in match.nodes}
        nodes = [
            ReplicaNode(
                node.id,
                node.incarnation,
                depths.get((node.id, node.incarnation), 0),
                node.slots_free,
                node.bytes_in_flight,
            )
            for node in self._nodes.current(monotonic_s())
            if node.root == root and node.state == "ready"
        ]
        change = change_of(nodes, num_blocks, request.num_replicas)
        if change.num_missing and change.source is None:
            raise ServiceError(
                ErrorCode.KV_LOST,
                f"chain: no node has all of its {num_blocks} blocks; a request that computes them "
                "must come first",
                field="chain",
            )
        return change

    async def _add(
        self,
        node: ReplicaNode,
        source: ReplicaNode | None,
        chain: bytes,
        deadline_s: float,
        reply: ChangeReplicaReply,
    ) -> bool:
        assert source is not None, "without a source nothing is added"
        from_node = (source.node, source.incarnation)
        try:
            brought = await ask_copy(
                self._bus, node.node, from_node, chain, deadline_s - monotonic_s()
            )
        except ServiceError as error:
            reply.failed[node.node] = str(error)
            return False
        if brought.num_blocks < num_keys(chain):
            reply.failed[node.node] = f"{brought.num_blocks} of {num_keys(chain)} blocks came"
            return False
        reply.added.append(node.node)
        reply.nodes.append(node.node)
        return True

    async def _drop(self, node: ReplicaNode, chain: bytes, reply: ChangeReplicaReply) -> None:
        try:
            await self._bus.request(
                subjects.transfer(node.node, "drop"),
                DropRequest(key=key_at(chain, num_keys(chain) - 1)),
                DropReply,
                timeout_s=ASK_TIMEOUT_S,
            )
        except ServiceError as error:
            reply.failed[node.node] = str(error)
            return
        reply.dropped.append(node.node)
        reply.nodes.remove(node.node)


async def ask_copy(
    bus: Bus, target: str, source: tuple[str, str], keys: bytes, timeout_s: float
) -> ReplicateReply:
    """Have a node bring a prefix from another one, behind what requests need."""
    remaining_ms = max(int(timeout_s * 1000), 1)
    return await bus.request(
        subjects.transfer(target, "replicate"),
        ReplicateRequest(
            keys=keys,
            source=NodeRef(id=source[0], incarnation=source[1]),
            remaining_ms=remaining_ms,
        ),
        ReplicateReply,
        timeout_s=remaining_ms / 1000 + ASK_TIMEOUT_S,
    )
