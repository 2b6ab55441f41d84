"""Compares what Redis, every mirror and the pools themselves say of each node.

The cluster lives meanwhile: a difference counts when it is still there after some time.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scripts.index.asking import ChangedMeanwhile, IndexAsker, Source
from shared.kv.print_digest import PrintDigest
from shared.kv.print_table import Prints
from shared.messages.index import ContentsReply
from shared.runtime.errors import NoResponder

REDIS = "redis"
POOL = "pool"
AGAIN_S = 1.5
"""More than a node needs to tell that an event was lost."""
MAX_EXAMPLES = 5


@dataclass(slots=True)
class NodeComparison:
    """What each place says of one node: number of blocks and digest."""

    node: str
    seen: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """By place: incarnation, blocks, digest."""
    is_gone: bool = False
    """Its pool does not answer: it is in no match once its lease has ended."""
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return self.is_gone or len(set(self.seen.values())) == 1

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "ok": self.is_equal,
            "gone": self.is_gone,
            "places": {
                place: {"incarnation": incarnation, "blocks": count, "digest": digest}
                for place, (incarnation, count, digest) in self.seen.items()
            },
            "differences": self.examples,
        }


async def verify(asker: IndexAsker, indexes: list[str], *, rounds: int = 4) -> list[NodeComparison]:
    """One comparison a node. Those that differ are looked at again, `rounds` times in all."""
    found = await _compare(asker, indexes)
    for _ in range(rounds - 1):
        if all(one.is_equal for one in found):
            return found
        await asyncio.sleep(AGAIN_S)
        found = await _compare(asker, indexes)
    for one in found:
        if not one.is_equal:
            one.examples = await _differences(asker, indexes, one.node)
    return found


async def _compare(asker: IndexAsker, indexes: list[str]) -> list[NodeComparison]:
    replies: dict[str, ContentsReply] = {
        f"mirror {index}": await asker.contents(index, "mirror") for index in indexes
    }
    replies[REDIS] = await asker.contents(indexes[0], "redis")
    names = sorted({one.node.id for reply in replies.values() for one in reply.nodes})
    comparisons = {name: NodeComparison(name) for name in names}
    for place, reply in replies.items():
        known = {one.node.id: one for one in reply.nodes}
        for name, comparison in comparisons.items():
            one = known.get(name)
            comparison.seen[place] = (
                ("", 0, "") if one is None else (one.node.incarnation, one.num_blocks, one.digest)
            )
    for name, comparison in comparisons.items():
        try:
            incarnation, prints = await asker.inventory(name)
        except NoResponder:
            comparison.is_gone = True
        except ChangedMeanwhile:
            comparison.seen[POOL] = ("changing", 0, "")
        else:
            digest = PrintDigest()
            digest.add(prints)
            comparison.seen[POOL] = (incarnation, digest.num_blocks, digest.text)
    return list(comparisons.values())


async def _differences(
    asker: IndexAsker, indexes: list[str], node: str
) -> dict[str, dict[str, Any]]:
    """By place: blocks that it lacks of the pool's, and blocks that the pool has not."""
    try:
        _, pool = await asker.inventory(node)
        places: dict[str, Prints] = {REDIS: await asker.prints(indexes[0], "redis", node)}
        for index in indexes:
            source: Source = "mirror"
            places[f"mirror {index}"] = await asker.prints(index, source, node)
    except ChangedMeanwhile as error:
        return {"changing": {"what": str(error)}}
    return {
        place: {"missing": _some(pool, prints), "too_many": _some(prints, pool)}
        for place, prints in places.items()
        if not np.array_equal(np.unique(prints), pool)
    }


def _some(have: Prints, lack: Prints) -> dict[str, Any]:
    only = np.setdiff1d(have, lack)
    examples = [int(one).to_bytes(8, "little").hex() for one in only[:MAX_EXAMPLES]]
    return {"blocks": len(only), "examples": examples}
