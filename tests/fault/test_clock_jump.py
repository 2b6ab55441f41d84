"""The time of day jumps in every process and in Redis, under 20 streams."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from tests.support.cluster import HostedCluster, dummy_options
from tests.support.deadline import until
from tests.support.fault_bench import FaultBench, make_bench
from tests.support.jumping_clock import JumpingClock, jumping_clock
from tests.support.seams import Held
from tests.support.servers import redis_server

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]
SERVICES = ("gateway", "conductor", "cache_index", "transfer", "prefill", "decode")
DAY_S = 86_400
JUMPS = {"a day ahead": DAY_S, "a day back": -DAY_S, "back to now": 0}


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultBench, JumpingClock]]:
    """A cluster and the time of day of all that is in it; NATS' server asks no libc for it."""
    folder = tmp_path_factory.mktemp("clocks")
    seams = folder / "seams"
    seams.mkdir()
    clock = jumping_clock(folder)
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder / "redis", clock.environment))
        options = dummy_options(
            gateways=2,
            conductors=2,
            cache_indexes=2,
            redis_url=server.url,
            decode_tokens=40_000,
            extra_env=dict.fromkeys(SERVICES, clock.environment)
            | {"decode": clock.environment | {"MOONPOOL_MAX_BATCH": "32"}},
        )
        cluster = stack.enter_context(HostedCluster(options))
        yield make_bench(cluster, seams), clock


def redis_offset_s(url: str) -> float:
    """How far the time of day of Redis is from ours."""
    with redis.Redis.from_url(url) as client:
        seconds, _ = client.time()
    return float(seconds) - time.time()


@pytest.mark.parametrize("jump", JUMPS)
async def test_answers_stay_right_and_all_is_given_back(
    clocks: tuple[FaultBench, JumpingClock],
    jump: str,
    record_property: Callable[[str, object], None],
) -> None:
    bench, clock = clocks

    async def do(bench: FaultBench, _held: Held) -> None:
        clock.jump(JUMPS[jump])
        url = bench.cluster.redis_url

        async def has_jumped() -> bool:
            return abs(await asyncio.to_thread(redis_offset_s, url) - JUMPS[jump]) < DAY_S / 4

        await until(has_jumped, what=f"the time of day is {jump}")

    row = await bench.row("clock jump", jump, None, do)
    record_property("fault", row.as_json())
    assert row.wrong == row.hangs == 0, row
    assert not row.leaks, row
    assert row.errors == 0, row
