"""Where each question of the demo is asked, and what must be seen there. Asks nothing itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shared.messages.reports import InstanceReport

CachedFrom = Literal["none", "local", "remote", "mixed"]


class PlanError(Exception):
    """The cluster cannot show it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request. No instances: the policy places it."""

    what: str
    question: str
    prefill: str = ""
    decode: str = ""
    cached_from: CachedFrom | None = None
    """What must be seen; None: whatever the policy makes of it."""
    must_move_bytes: bool = False

    @property
    def placement(self) -> dict[str, str] | None:
        return {"prefill": self.prefill, "decode": self.decode} if self.prefill else None


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode instance of one node."""

    node: str
    prefill: str
    decode: str


def pairs_of(instances: Sequence[InstanceReport]) -> list[Pair]:
    """One pair of every node that has both and is ready, by node name."""
    ready = sorted((i for i in instances if i.state == "ready"), key=lambda i: (i.node, i.id))
    pairs = []
    for node in dict.fromkeys(instance.node for instance in ready):
        roles = {i.service: i.id for i in reversed(ready) if i.node == node}
        if "prefill" in roles and "decode" in roles:
            pairs.append(Pair(node, roles["prefill"], roles["decode"]))
    return pairs


def plan(instances: Sequence[InstanceReport], questions: Sequence[str]) -> list[Step]:
    """Five steps: computed, hit on its node, hit from the other node, decode on the other node,
    and one that the policy places."""
    pairs = pairs_of(instances)
    if len(pairs) < 2:
        nodes = ", ".join(pair.node for pair in pairs) or "none"
        raise PlanError(f"needs two nodes with a prefill and a decode instance each, has {nodes}")
    if len(questions) != 5:
        raise PlanError(f"needs five questions, got {len(questions)}")
    here, there = pairs[:2]
    return [
        Step("computed", questions[0], here.prefill, here.decode, "none"),
        Step("hit on its node", questions[1], here.prefill, here.decode, "local"),
        Step("hit from the other node", questions[2], there.prefill, there.decode, "remote", True),
        Step("decode on the other node", questions[3], there.prefill, here.decode, "local", True),
        Step("placed by the policy", questions[4]),
    ]
