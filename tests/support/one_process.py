"""A cluster of few processes: two real transfers, and all other services in the test itself.

For machines on which starting a process takes a minute.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import SecretStr

from services.cache_index.service import CacheIndexService
from services.cache_index.settings import CacheIndexSettings
from services.conductor.service import ConductorService
from services.conductor.settings import ConductorSettings
from services.gateway.service import GatewayService
from services.gateway.settings import GatewaySettings
from services.prefill.service import PrefillService
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from shared.runtime.bus import Bus
from shared.worker.settings import WorkerSettings
from tests.support.api import Answer, Api
from tests.support.cluster import DUMMY_MODEL, DUMMY_POOL_BYTES
from tests.support.deadline import PATIENCE, until
from tests.support.hosted import Hosted
from tests.support.transfer_node import TransferHost

ADMIN_KEY = "of-the-test"
NODES = ("one", "two")


@dataclass(frozen=True, slots=True)
class OneProcessCluster:
    """On each node one worker that prefills and decodes; `workers` are their ids by node."""

    api: Api
    workers: Mapping[str, str]
    client: httpx.AsyncClient

    async def ask(self, prompt: list[int], *, prefill: str, decode: str, max_tokens: int) -> Answer:
        """One answer; the stages are placed on the nodes that are named."""
        placement = {"prefill": self.workers[prefill], "decode": self.workers[decode]}
        return await self.api.complete_async(
            self.client, prompt, placement=placement, max_tokens=max_tokens
        )


@asynccontextmanager
async def one_process_cluster(
    nats_url: str, redis_url: str, folder: Path, transport: str, settings: Mapping[str, str]
) -> AsyncIterator[OneProcessCluster]:
    """`transport` is the only one of the nodes; `settings` are more variables of both."""
    async with AsyncExitStack() as stack:
        host = stack.enter_context(TransferHost(nats_url, folder, transport))
        nodes = {
            name: host.start(name, pool_bytes=DUMMY_POOL_BYTES, settings=settings).node
            for name in NODES
        }
        index = CacheIndexSettings(nats_url=nats_url, redis_url=redis_url)
        conductor = ConductorSettings(nats_url=nats_url)
        hosted: list[Hosted[CacheIndexService] | Hosted[ConductorService]] = [
            Hosted("cache-index", CacheIndexService(index), index),
            Hosted("conductor", ConductorService(conductor), conductor),
        ]
        for service in hosted:
            await stack.enter_async_context(service)
        workers: dict[str, str] = {}
        for name in NODES:
            worker = WorkerSettings(
                nats_url=nats_url,
                model=DUMMY_MODEL,
                role="both",
                cache_dir=folder,
                shared_dir=host.folder.path,
                node=nodes[name],
            )
            running = Hosted("prefill", PrefillService(worker), worker)
            await stack.enter_async_context(running)
            workers[name] = running.id
        gateway = GatewaySettings(
            nats_url=nats_url, model=DUMMY_MODEL, http_port=0, admin_key=SecretStr(ADMIN_KEY)
        )
        front = Hosted("gateway", GatewayService(gateway), gateway)
        await stack.enter_async_context(front)
        client = await stack.enter_async_context(
            httpx.AsyncClient(trust_env=False, timeout=60.0 * PATIENCE)
        )
        await _until_heard(nats_url, workers)
        await _until_serving(client, front.service.url)
        api = Api(front.service.url, ADMIN_KEY, DUMMY_MODEL)
        yield OneProcessCluster(api, workers, client)


async def _until_heard(nats_url: str, workers: Mapping[str, str]) -> None:
    bus = await Bus.connect(nats_url, name="test")

    async def are_ready() -> bool:
        state = await bus.request(
            subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=5.0 * PATIENCE
        )
        ready = {one.id for one in state.instances if one.state == "ready"}
        return set(workers.values()) <= ready

    try:
        await until(are_ready, timeout_s=30.0, what="workers that the conductor knows")
    finally:
        await bus.close()


async def _until_serving(client: httpx.AsyncClient, url: str) -> None:
    async def is_ready() -> bool:
        return (await client.get(f"{url}/ready")).status_code == 200

    await until(is_ready, timeout_s=30.0, what="a gateway that serves")
