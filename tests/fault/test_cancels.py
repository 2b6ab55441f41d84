"""Clients that leave at random moments, a thousand of them: every count is back at its start."""

import asyncio
import random
from collections import Counter

import httpx
import psutil
import pytest

from tests.support.cluster import HostedCluster
from tests.support.deadline import wait_until
from tests.support.load import Load
from tests.support.redis_keys import lasting_keys

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
NUM_AT_ONCE = 16
MOST_PATIENCE_S = 0.6
DESCRIPTORS = THREADS = 3
"""May come and go: a connection between pools, a thread of an executor."""


@pytest.fixture(scope="module")
def load(fault_cluster: HostedCluster) -> Load:
    fault_cluster.wait_ready()
    return Load(fault_cluster)


def counts(cluster: HostedCluster) -> dict[str, tuple[int, int]]:
    """(descriptors, threads) of every service."""
    found = {}
    for name in cluster.cluster.names.all:
        process = psutil.Process(cluster.pid(name))
        found[name] = (process.num_fds(), process.num_threads())
    return found


async def cancel_many(load: Load, num_cancels: int, rng: random.Random) -> Counter[str]:
    """Ask and leave after a random while: while it is read, queued, computed, moved, decoded."""
    ended: Counter[str] = Counter()
    room = asyncio.Semaphore(NUM_AT_ONCE)

    async def ask(client: httpx.AsyncClient) -> None:
        prompt = [rng.randrange(3, 500) for _ in range(rng.randrange(20, 1_200))]
        prompt[: rng.randrange(1, 20)] = load.prompts[0][:10]
        body = load.api.body(
            prompt,
            stream=rng.random() < 0.7,
            max_tokens=rng.choice([2, 50, 400]),
            n=rng.choice([1, 1, 1, 3]),
            cache=rng.choice(["on", "off"]),
        )
        url = f"{load.api.base_url}/v1/completions"
        try:
            async with asyncio.timeout(rng.uniform(0.0, MOST_PATIENCE_S)):
                async with client.stream("POST", url, json=body, timeout=60) as response:
                    async for _ in response.aiter_bytes():
                        continue
                    ended[f"answered {response.status_code}"] += 1
        except TimeoutError:
            ended["left"] += 1

    async def ask_in_turn(client: httpx.AsyncClient) -> None:
        async with room:
            await ask(client)

    async with httpx.AsyncClient(trust_env=False) as client, asyncio.TaskGroup() as group:
        for _ in range(num_cancels):
            group.create_task(ask_in_turn(client))
    return ended


async def check(load: Load, num_cancels: int) -> None:
    cluster = load.cluster
    num_deaths, num_lines = len(cluster.deaths), cluster.num_lines
    # Once before, so that pools of threads and connections are as large as they get.
    await cancel_many(load, 60, random.Random(1))
    await load.all_is_given_back()
    before, keys = counts(cluster), lasting_keys(cluster.redis_url)
    ended = await cancel_many(load, num_cancels, random.Random(2))
    assert ended["left"] > num_cancels / 2, ended
    assert set(ended) <= {"left", "answered 200", "answered 429", "answered 503"}, ended
    await load.all_is_given_back()

    def are_back() -> bool:
        now = counts(cluster)
        return all(
            now[name][0] <= before[name][0] + DESCRIPTORS
            and now[name][1] <= before[name][1] + THREADS
            for name in before
        )

    await asyncio.to_thread(wait_until, are_back, timeout_s=20, what=f"{before}: counts are back")
    assert lasting_keys(cluster.redis_url) == keys
    assert len(cluster.deaths) == num_deaths
    assert "Traceback" not in cluster.logs(since=num_lines)
    for prompt, wanted in zip(load.prompts, load.wanted, strict=True):
        answer = await asyncio.to_thread(load.api.complete, prompt, max_tokens=len(wanted))
        assert answer.tokens == wanted


async def test_a_hundred_clients_leave_at_any_moment(load: Load) -> None:
    await check(load, 100)


@pytest.mark.slow
async def test_a_thousand_clients_leave_at_any_moment(load: Load) -> None:
    await check(load, 1_000)
