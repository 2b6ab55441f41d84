"""What services stand on fails under 20 streams: network, Redis, disk, pool."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import redis

from shared.messages import subjects
from shared.messages.common import Empty, NodeRef
from shared.messages.conductor import ModelsReply, StateReply
from shared.messages.transfer import LeaseReply, LeaseRequest
from tests.support.cluster import HostedCluster, dummy_options
from tests.support.fault_bench import FaultBench, chain_of, make_bench
from tests.support.nats_proxy import NatsProxy
from tests.support.seams import Held, Seams
from tests.support.servers import nats_server

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]
PARTITION_S = 4.0
"""Longer than a lease."""
HARM_S = 3.0
PROXIED = ("gateway-1", "conductor-1", "cache-index-1", "node-1", "prefill-1", "decode-1")
POOL_BYTES, POOL_BLOCKS = 8 << 20, 64
"""Of a node: not enough for all users at once, and blocks are evicted to the SSD."""
GREEDY_TOKENS = 1_800
NUM_GREEDY_PROMPTS = 7
GREEDY_TTL_MS = 30_000
Fault = Callable[["Surroundings"], Awaitable[None]]


class Surroundings:
    def __init__(self, bench: FaultBench, proxies: dict[str, NatsProxy]) -> None:
        self.bench = bench
        self.proxies = proxies

    @property
    def redis(self) -> "redis.Redis[bytes]":
        return redis.Redis.from_url(self.bench.cluster.redis_url)


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    folder = tmp_path_factory.mktemp("around")
    seams_folder = folder / "seams"
    seams_folder.mkdir()
    with ExitStack() as stack:
        nats = stack.enter_context(nats_server(folder / "nats"))
        proxies = {name: stack.enter_context(NatsProxy(nats.url)) for name in PROXIED}
        extra = {name: {"MOONPOOL_NATS_URL": proxy.url} for name, proxy in proxies.items()}
        extra |= services_of(folder, seams_folder)
        options = dummy_options(
            nats_url=nats.url,
            gateways=2,
            conductors=2,
            cache_indexes=2,
            pool_bytes=POOL_BYTES,
            decode_tokens=40_000,
            extra_env=extra,
        )
        cluster = stack.enter_context(HostedCluster(options))
        yield Surroundings(make_bench(cluster, seams_folder), proxies)


def services_of(folder: Path, seams: Path) -> dict[str, dict[str, str]]:
    """Their seams and an SSD."""
    ssd = {"MOONPOOL_SSD_DIR": str(folder / "ssd"), "MOONPOOL_SSD_WRITE": "demotion"}
    # A pool of threads grows until it has all: few, so that this looks like no leak.
    own = {"transfer": ssd | {"MOONPOOL_SSD_BYTES": str(64 << 20), "MOONPOOL_SSD_THREADS": "1"}}
    own["decode"] = {"MOONPOOL_MAX_BATCH": "32"}
    return {name: own.get(name, {}) | seam for name, seam in Seams(seams).environment.items()}


# --- faults --------------------------------------------------------------------------------------
async def flush_redis(around: Surroundings) -> None:
    with around.redis as client:
        await asyncio.to_thread(client.flushall)


async def fill_redis(around: Surroundings) -> None:
    with around.redis as client:
        await asyncio.to_thread(client.config_set, "maxmemory", "1")
        try:
            await asyncio.sleep(HARM_S)
        finally:
            await asyncio.to_thread(client.config_set, "maxmemory", "0")


def partition(name: str) -> Fault:
    async def do(around: Surroundings) -> None:
        harm = around.proxies[name].harm
        harm.is_held = True
        try:
            await asyncio.sleep(PARTITION_S)
        finally:
            harm.is_held = False

    return do


async def slow_bus(around: Surroundings) -> None:
    for proxy in around.proxies.values():
        proxy.harm.delay_s = 0.03
    try:
        await asyncio.sleep(HARM_S)
    finally:
        for proxy in around.proxies.values():
            proxy.harm.delay_s = 0.0


async def unordered_bus(around: Surroundings) -> None:
    """Events and reports are lost, streams come twice or in another order."""
    harms = [proxy.harm for proxy in around.proxies.values()]
    for harm in harms:
        harm.lost, harm.repeated, harm.swapped = 0.2, 0.2, 0.2
    try:
        await asyncio.sleep(HARM_S)
    finally:
        for harm in harms:
            harm.lost = harm.repeated = harm.swapped = 0.0


def flagged(flag: str, process: str, text: str = "") -> Fault:
    async def do(around: Surroundings) -> None:
        around.bench.seams.set_flag(flag, process, text)
        try:
            await asyncio.sleep(HARM_S)
        finally:
            around.bench.seams.clear_flag(flag, process)

    return do


async def fill_pool(around: Surroundings) -> None:
    """A peer that leases all that one may of both pools: prompts that were just computed there."""
    bench, rng, leases = around.bench, random.Random(3), Leases(around.bench.cluster)
    async with httpx.AsyncClient(trust_env=False) as http:
        for number in range(NUM_GREEDY_PROMPTS):
            for node in ("node-1", "node-2"):
                prompt = tuple(rng.randrange(3, 500) for _ in range(GREEDY_TOKENS))
                await bench.ask_on(http, node, prompt, cache_salt=f"greedy-{number}")
                await asyncio.to_thread(leases.take, node, prompt, f"greedy-{number}")
    assert min(leases.num_held.values()) > POOL_BLOCKS / 2, "too few blocks are held to fill a pool"
    await asyncio.sleep(HARM_S)


class Leases:
    """A peer that never gives back what it leased: the node ends its leases."""

    def __init__(self, cluster: HostedCluster) -> None:
        self._cluster = cluster
        self._bus = cluster.cluster.bus
        ask = self._bus.request
        models = cluster.call(ask(subjects.CONDUCTOR_MODELS, Empty(), ModelsReply, timeout_s=5))
        state = cluster.call(ask(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=5))
        (self._model,) = models.models
        self._incarnations = {node.id: node.incarnation for node in state.nodes}
        self.num_held = Counter(dict.fromkeys(self._incarnations, 0))

    def take(self, node: str, prompt: tuple[int, ...], salt: str) -> None:
        asked = LeaseRequest(
            holder=NodeRef(id="greedy", incarnation="1"),
            incarnation=self._incarnations[node],
            root=self._model.root,
            keys=chain_of(self._model, prompt, salt),
            ttl_ms=GREEDY_TTL_MS,
        )
        subject = subjects.transfer(node, "lease")
        asking = self._bus.request(subject, asked, LeaseReply, timeout_s=5)
        self.num_held[node] += len(self._cluster.call(asking).slots)


FAULTS: dict[tuple[str, str], Fault] = {
    ("FLUSHALL", "Redis"): flush_redis,
    ("out of memory", "Redis"): fill_redis,
    **{("partition", name.removesuffix("-1")): partition(name) for name in PROXIED},
    ("slow", "NATS"): slow_bus,
    ("lost, repeated, swapped", "events"): unordered_bus,
    ("slow link", "transfer"): flagged("slow link", "node-1"),
    ("dead link", "transfer"): flagged("cut link", "node-1"),
    ("failing disk", "transfer"): flagged("disk", "node-1", "EIO read write"),
    ("full disk", "transfer"): flagged("disk", "node-2", "ENOSPC write"),
    ("full pool", "transfer"): fill_pool,
}


@pytest.mark.parametrize(("fault", "target"), FAULTS, ids=map(" of ".join, FAULTS))
async def test_answers_stay_right_and_all_is_given_back(
    around: Surroundings, fault: str, target: str, record_property: Callable[[str, object], None]
) -> None:
    async def do(_bench: FaultBench, _held: Held) -> None:
        await FAULTS[fault, target](around)

    row = await around.bench.row(fault, target, None, do)
    record_property("fault", row.as_json())
    assert row.wrong == row.hangs == 0, row
    assert not row.leaks, row
    assert row.errors == 0, row
