"""Every process is stopped in order and started again under its name, under 20 streams."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import HostedCluster, dummy_options
from tests.support.fault_bench import FaultBench, make_bench
from tests.support.seams import Held

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(600)]
DRAIN_S = 20.0
"""Longer than any answer takes here."""
GROUPS = ("conductors", "cache_indexes", "prefills", "decodes", "nodes")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    options = dummy_options(
        gateways=2,
        conductors=2,
        cache_indexes=2,
        decode_tokens=40_000,
        drain_timeout_s=DRAIN_S,
        extra_env={"decode": {"MOONPOOL_MAX_BATCH": "32"}},
    )
    with HostedCluster(options) as cluster:
        yield make_bench(cluster, tmp_path_factory.mktemp("seams"))


async def restart(bench: FaultBench, group: str) -> None:
    for name in getattr(bench.cluster.cluster.names, group):
        await asyncio.to_thread(bench.cluster.restart, name)
        await asyncio.to_thread(bench.cluster.wait_ready)


async def test_no_request_fails_while_all_but_the_gateways_are_restarted(
    bench: FaultBench, record_property: Callable[[str, object], None]
) -> None:
    async def do(bench: FaultBench, _held: Held) -> None:
        for group in GROUPS:
            await restart(bench, group)

    row = await bench.row("rolling restart", "all but gateways", None, do)
    record_property("fault", row.as_json())
    assert row.errors == row.wrong == row.hangs == 0, row
    assert not row.leaks, row


async def test_a_gateway_that_is_restarted_finishes_its_streams_and_the_other_takes_the_rest(
    bench: FaultBench, record_property: Callable[[str, object], None]
) -> None:
    async def do(bench: FaultBench, _held: Held) -> None:
        await restart(bench, "gateways")

    row = await bench.row("rolling restart", "gateways", None, do)
    record_property("fault", row.as_json())
    assert row.wrong == row.hangs == row.kinds.get("failed", 0) == 0, row
    assert not row.leaks, row
    # Nothing that was accepted: draining refuses at once, and then nobody listens for a while.
    allowed = ("draining", "ConnectError", "without sending a response")
    assert all(any(word in error for word in allowed) for error in row.first_errors), row
