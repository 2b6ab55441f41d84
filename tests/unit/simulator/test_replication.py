"""Copies ahead of need in the simulator, by the conductor's own class."""

from dataclasses import replace

from shared.scheduling.replication import ReplicationSettings
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import TraceRequest
from tests.support.simulating import paper_hardware, request

PREFIX = 40
OWN = 8
BUDGET = ReplicationSettings(budget_bytes_per_s=1e12)


def siblings(num: int) -> list[TraceRequest]:
    """A prefix that one node has, then prompts that share it, faster than one node computes."""
    first = request(0.0, 0, PREFIX)
    later = [request(20.0 + 0.3 * at, 0, PREFIX + OWN) for at in range(num)]
    own = [
        (*range(PREFIX), *range(10_000 + OWN * at, 10_000 + OWN * (at + 1))) for at in range(num)
    ]
    return [first, *(replace(one, block_ids=ids) for one, ids in zip(later, own, strict=True))]


def run(replication: ReplicationSettings | None) -> SimulatedCluster:
    cluster = SimulatedCluster(
        ClusterSettings(
            paper_hardware().with_line_rate(50),
            num_prefills=6,
            num_decodes=2,
            replication=replication,
        )
    )
    cluster.run(siblings(60))
    return cluster


def test_a_prefix_missed_by_many_is_copied_to_nodes_that_lack_it_and_then_no_more() -> None:
    cluster = run(BUDGET)
    assert cluster.replication is not None
    assert 1 <= cluster.replication.num_copies <= 5
    assert cluster.replication.moved_bytes > 0
    for prefill in cluster.machines.prefills.values():
        prefill.node.pool.check_integrity()
    assert run(BUDGET).replication.num_copies == cluster.replication.num_copies  # type: ignore[union-attr]


def test_it_is_off_unless_asked_for() -> None:
    assert run(None).replication is None
