"""Every process is stopped in order and started again under its name, under 20 streams."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import HostedCluster, dummy_options
from tests.support.fault_bench import FaultBench, make_bench
from tests.support.openai_users import OpenAiUsers
from tests.support.seams import Held

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(600)]
DRAIN_S = 30.0
"""Longer than any answer takes here."""
GROUPS = ("gateways", "conductors", "cache_indexes", "prefills", "decodes", "nodes")
NUM_OPENAI_USERS = 12


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    options = dummy_options(
        gateways=2,
        conductors=2,
        cache_indexes=2,
        decode_tokens=40_000,
        drain_timeout_s=DRAIN_S,
        extra_env={"decode": {"MOONPOOL_MAX_BATCH": "40"}},
    )
    with HostedCluster(options) as cluster:
        yield make_bench(cluster, tmp_path_factory.mktemp("seams"))


async def restart(bench: FaultBench, group: str) -> None:
    for name in getattr(bench.cluster.cluster.names, group):
        await asyncio.to_thread(bench.cluster.restart, name)
        await asyncio.to_thread(bench.cluster.wait_ready)


@pytest.mark.parametrize("groups", [GROUPS, ("gateways",)], ids=["everything", "gateways"])
async def test_no_request_fails_while_every_process_is_restarted(
    bench: FaultBench, groups: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    """Beside the 20 users of the table, others with OpenAI's client at the first gateway."""
    where = bench.wheres[0]
    users = OpenAiUsers(where.base_url, where.model, where.key, bench.questions, NUM_OPENAI_USERS)

    async def do(bench: FaultBench, _held: Held) -> None:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(users.run(over))
            try:
                for one in groups:
                    await restart(bench, one)
            finally:
                over.set()

    target = "everything" if groups == GROUPS else "gateways"
    row = await bench.row("rolling restart", target, None, do)
    row.answers += users.num_right.total()
    record_property("fault", row.as_json())
    assert row.errors == row.wrong == row.hangs == 0, row
    assert not row.leaks, row
    assert not users.errors
    assert users.all_are_served
    assert not bench.cluster.deaths
