"""Handing blocks over when a node leaves: whoever refuses is not asked again, nothing fails."""

from types import SimpleNamespace
from typing import Any

from services.transfer.leaver import Leaver
from shared.kv.block_keys import split
from shared.messages import subjects
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.conductor import StateReply
from shared.messages.index import MatchReply
from shared.messages.reports import NodeReport
from shared.runtime.errors import ServiceError
from tests.support.transfer_node import GEOMETRY, ROOT, make_chain

OWN = NodeRef(id="a", incarnation="1")


class FullCluster:
    """One other node, which takes nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def request(self, subject: str, *_: object, timeout_s: float) -> object:
        self.asked.append(subject)
        if subject == subjects.CONDUCTOR_STATE:
            other = NodeReport(id="b", incarnation="1", state="ready", root=ROOT)
            return StateReply(conductor="c", nodes=[other])
        if subject == subjects.INDEX_MATCH:
            return MatchReply()
        raise ServiceError(ErrorCode.OVERLOADED, "no room")


async def test_when_all_have_refused_nobody_is_asked_for_the_next_chain() -> None:
    chains = [split(make_chain(2, seed=seed)) for seed in range(3)]
    cluster = FullCluster()
    bus: Any = cluster
    tiers: Any = SimpleNamespace(worth_keeping=lambda _max_blocks: chains)
    node: Any = SimpleNamespace(pool=SimpleNamespace(root=ROOT, geometry=GEOMETRY))
    assert await Leaver(bus, OWN, node, tiers).hand_over(1 << 20, timeout_s=5.0) == 0
    assert cluster.asked.count(subjects.transfer("b", "replicate")) == 1
