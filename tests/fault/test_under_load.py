"""Faults of every kind under load: answers are right or one clear error, and all is given back."""

import asyncio
import glob
import random
import signal
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from shared.transport.segment import HEADER
from tests.support.cluster import HostedCluster
from tests.support.deadline import until
from tests.support.load import NUM_USERS, Load

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]
Fault = Callable[[HostedCluster], Awaitable[None]]


@pytest.fixture(scope="module")
def load(fault_cluster: HostedCluster) -> Load:
    fault_cluster.wait_ready()
    return Load(fault_cluster)


def kill(name: str, number: int = signal.SIGKILL) -> Fault:
    async def fault(cluster: HostedCluster) -> None:
        cluster.kill(name, number)

    return fault


def pause(name: str, pause_s: float) -> Fault:
    async def fault(cluster: HostedCluster) -> None:
        cluster.pause(name)
        try:
            await asyncio.sleep(pause_s)
        finally:
            cluster.resume(name)

    return fault


FAULTS = {
    "a conductor is killed": kill("conductor-1"),
    "a cache-index is killed": kill("cache-index-1"),
    "a transfer is killed": kill("node-1"),
    "a transfer drains": kill("node-2", signal.SIGTERM),
    "a prefill drains": kill("prefill-1", signal.SIGTERM),
    "the only gateway drains": kill("gateway-1", signal.SIGTERM),
    "NATS is killed": kill("nats"),
    "Redis is killed": kill("redis"),
    "a transfer hangs": pause("node-1", 4.0),
    "Redis hangs": pause("redis", 1.5),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_request_fails_and_all_is_given_back_when(load: Load, fault: str) -> None:
    outcomes = await load.during(lambda: FAULTS[fault](load.cluster))
    # With half of decode away a burst may be refused, clearly and at once.
    errors = [e for e in outcomes.errors if "no decode instance has room" not in e]
    assert not errors
    assert outcomes.num_right >= NUM_USERS
    load.cluster.wait_ready()
    await load.all_is_given_back()


async def test_the_only_gateway_is_restarted_without_an_error_to_24_users(load: Load) -> None:
    cluster = load.cluster
    users = load.openai_users(24)
    num_deaths = len(cluster.deaths_of("gateway-1"))
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(users.run(over))
        try:
            await until(lambda: users.all_are_served, timeout_s=40, what="all are served")
            before = cluster.pid("gateway-1")
            await asyncio.to_thread(cluster.restart, "gateway-1")
            assert cluster.pid("gateway-1") != before
            users.num_right.clear()
            await until(lambda: users.all_are_served, timeout_s=40, what="all are served again")
        finally:
            over.set()
    assert not users.errors
    assert len(cluster.deaths_of("gateway-1")) == num_deaths
    cluster.wait_ready()
    await load.all_is_given_back()


async def test_a_gateway_that_is_killed_loses_its_own_streams_alone(load: Load) -> None:
    outcomes = await load.during(lambda: kill("gateway-1")(load.cluster), after_s=3.0)
    # Whoever comes next waits at its socket for the process that is started anew.
    assert set(outcomes.counts) <= {"right", "cut"}, outcomes.errors
    assert outcomes.counts["cut"] <= NUM_USERS, outcomes.errors
    assert outcomes.num_right >= NUM_USERS
    load.cluster.wait_ready()
    await load.all_is_given_back()


async def test_clients_that_leave_at_any_moment_cost_nothing(load: Load) -> None:
    rng = random.Random(7)

    async def leave_early(client: httpx.AsyncClient) -> None:
        for _ in range(20):
            try:
                async with asyncio.timeout(rng.choice([0.0, 0.003, 0.01, 0.03, 0.1, 0.2])):
                    await load.ask(client, rng.randrange(len(load.prompts)))
            except TimeoutError:
                continue

    async with httpx.AsyncClient(trust_env=False) as client, asyncio.TaskGroup() as group:
        for _ in range(NUM_USERS):
            group.create_task(leave_early(client))
    await load.all_is_given_back()


async def test_cached_blocks_that_are_damaged_in_memory_are_computed_anew(load: Load) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            before = await asyncio.gather(*(load.ask(client, i) for i in range(len(load.prompts))))
            await load.all_is_given_back()
            assert damage_all_slots(load.cluster) > 100
            after = await asyncio.gather(*(load.ask(client, i) for i in range(len(load.prompts))))
            assert set(before + after) == {"right"}
    await load.all_is_given_back()


def damage_all_slots(cluster: HostedCluster) -> int:
    """Flips one bit in every slot of every node, behind the back of all."""
    rng = random.Random(3)
    num_slots = 0
    for name in glob.glob(f"{cluster.cluster.folder.shared_dir}/*.seg"):
        with Path(name).open("r+b") as segment:
            header = HEADER.unpack(segment.read(HEADER.size))
            slots, block_bytes, offset = header[-3:]
            for slot in range(slots):
                at = offset + slot * block_bytes + rng.randrange(block_bytes)
                segment.seek(at)
                (byte,) = struct.unpack("B", segment.read(1))
                segment.seek(at)
                segment.write(bytes([byte ^ 0x40]))
            num_slots += slots
    return num_slots
