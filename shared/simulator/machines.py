"""The nodes and instances of a simulated cluster, and what they say of themselves."""

from collections.abc import Iterator, Sequence

from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.kv.ids import BlockKey
from shared.scheduling.events import Event, InstanceReported, NodeReported
from shared.scheduling.queue_discipline import make_discipline
from shared.scheduling.vocabulary import NodeMatch
from shared.simulator.event_loop import EventLoop
from shared.simulator.reports import common_fields, decode_view, prefill_view
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import BLOCK_TOKENS
from shared.simulator.virtual_decode import VirtualDecode
from shared.simulator.virtual_node import VirtualNode
from shared.simulator.virtual_prefill import VirtualPrefill

MODEL = "simulated"
INCARNATION = "1"


class Machines:
    def __init__(self, settings: ClusterSettings, loop: EventLoop) -> None:
        self._settings = settings
        self.nodes: dict[str, VirtualNode] = {}
        self.prefills: dict[str, VirtualPrefill] = {}
        self.decodes: dict[str, VirtualDecode] = {}
        self.node_of_decode: dict[str, VirtualNode] = {}
        self.with_pools: dict[str, VirtualNode] = {}
        """Nodes where blocks are kept."""
        hardware, sites = settings.hardware, settings.sites
        own_prefills = tuple(f"node-p{number:03}" for number in range(settings.num_prefills))
        own_decodes = tuple(f"node-d{number:03}" for number in range(settings.num_decodes))
        for number, node in enumerate(own_prefills if sites is None else sites.prefills):
            name = f"prefill-{number:03}"
            self.prefills[name] = VirtualPrefill(
                name,
                self._node(node, settings.pool_tokens),
                hardware,
                make_discipline(settings.queue_discipline, settings.ageing),
                settings.chunk_tokens,
                loop,
            )
        for number, node in enumerate(own_decodes if sites is None else sites.decodes):
            name = f"decode-{number:03}"
            pool_tokens = 0 if sites is None else settings.pool_tokens
            self.node_of_decode[name] = self._node(node, pool_tokens)
            self.decodes[name] = VirtualDecode(name, hardware, loop)
        self._common = common_fields(
            MODEL, INCARNATION, BLOCK_TOKENS, settings.grid_tokens, hardware
        )

    def _node(self, name: str, pool_tokens: int) -> VirtualNode:
        if name not in self.nodes:
            policy = EVICTION_POLICIES[self._settings.eviction]()
            blocks = max(1, pool_tokens // BLOCK_TOKENS)
            speed = self._settings.hardware.link_bytes_per_s
            self.nodes[name] = VirtualNode(name, blocks, policy, speed)
            if pool_tokens:
                self.with_pools[name] = self.nodes[name]
        return self.nodes[name]

    def matches(self, keys: Sequence[BlockKey]) -> tuple[NodeMatch, ...]:
        """Who holds leading blocks of a chain, as an index that is never late."""
        found = []
        if keys:
            for node in self.with_pools.values():
                depth = node.num_leading(keys)
                if depth:
                    found.append(NodeMatch(node.id, INCARNATION, depth))
        return tuple(found)

    def reports(self, now_s: float) -> Iterator[Event]:
        """Of all instances and nodes."""
        for prefill in self.prefills.values():
            yield InstanceReported(prefill_view(prefill, now_s, self._common))
            if self._settings.sites is None:
                yield _node_report(prefill.node, now_s)
        if self._settings.sites is not None:
            for node in self.nodes.values():
                yield _node_report(node, now_s)
        for decode in self.decodes.values():
            node_id = self.node_of_decode[decode.id].id
            yield InstanceReported(decode_view(decode, node_id, self._common))


def _node_report(node: VirtualNode, now_s: float) -> NodeReported:
    backlog = max(node.sends.backlog_bytes(now_s), node.receives.backlog_bytes(now_s))
    return NodeReported((node.id, INCARNATION), backlog)
