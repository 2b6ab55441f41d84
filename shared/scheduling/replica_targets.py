"""Nodes that could take a copy of a prefix: where prompts of its format are computed, and how busy
they are.
"""

from collections.abc import Mapping

from shared.scheduling.cluster_view import ClusterView
from shared.scheduling.replication import TargetNode


def targets_of(
    view: ClusterView,
    root: bytes,
    pools: Mapping[tuple[str, str], tuple[int, int]],
    lease_s: float,
    now_s: float,
) -> list[TargetNode]:
    """One for each node with a prefill instance that can be chosen and a pool that is known.

    `pools`: by (node, incarnation) its free blocks and its bytes in flight.
    """
    waits_s: dict[tuple[str, str], float] = {}
    for seen in view.of_role("prefill"):
        one = seen.view
        is_silent = now_s - seen.seen_s > lease_s or seen.is_suspect
        if one.root != root or one.state != "ready" or is_silent:
            continue
        promised_s = sum(promise.compute_s for promise in seen.promises.values())
        wait_s = max(0.0, one.expected_start_s - (now_s - seen.seen_s)) + promised_s
        node = (one.node, one.node_incarnation)
        waits_s[node] = min(wait_s, waits_s.get(node, wait_s))
    return [
        TargetNode(
            node=node[0],
            incarnation=node[1],
            wait_s=wait_s,
            free_blocks=pools[node][0],
            bytes_in_flight=pools[node][1],
        )
        for node, wait_s in sorted(waits_s.items())
        if node in pools
    ]
