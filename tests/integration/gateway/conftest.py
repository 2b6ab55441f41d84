"""A gateway in this process on a real NATS, and a fake cluster behind it."""

import asyncio
import logging
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway.service import GatewayService
from services.gateway.settings import GatewaySettings
from shared.runtime.bus import Bus
from shared.runtime.lifecycle import Context
from shared.runtime.tasks import Tasks
from tests.support.api import NO_TLS
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL, FakeCluster

ADMIN_KEY = "an admin key"


@dataclass
class Rig:
    """What a test of the gateway holds in its hands."""

    service: GatewayService
    context: Context[GatewaySettings]
    cluster: FakeCluster
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return self.service.url


@asynccontextmanager
async def running_rig(
    nats_url: str, *, beside: Rig | None = None, **changes: Any
) -> AsyncIterator[Rig]:
    """`beside` another gateway it asks the cluster of that one."""
    settings = GatewaySettings.model_validate(
        {
            "nats_url": nats_url,
            "instance_id": f"gw-{secrets.token_hex(4)}",
            "model": MODEL,
            "http_port": 0,
            "admin_key": ADMIN_KEY,
            "max_body_bytes": 100_000,
            **changes,
        }
    )
    bus = await Bus.connect(nats_url, name="gateway")
    fake_bus = await Bus.connect(nats_url, name="fake cluster")
    log = logging.getLogger("test.gateway")
    async with asyncio.TaskGroup() as group:
        tasks, fake_tasks = Tasks(group, log), Tasks(group, log)
        cluster = FakeCluster(fake_bus, fake_tasks) if beside is None else beside.cluster
        if beside is None:
            await cluster.start()
        context = Context(
            service="gateway",
            settings=settings,
            bus=bus,
            tasks=tasks,
            log=log,
            incarnation=secrets.token_hex(4),
            stopping=asyncio.Event(),
        )
        service = GatewayService(settings)
        await service.start(context)
        for instance in cluster.instances:
            await instance.report()
        async with httpx.AsyncClient(
            base_url=service.url, timeout=20, verify=trusting(settings.http_cert)
        ) as http:
            rig = Rig(service, context, cluster, http)
            await until(lambda: not service.missing, what="gateway ready")
            yield rig
        await service.stop()
        await context.stop_serving()
        if beside is None:
            await cluster.stop()
        assert await tasks.end(5) == []
        assert await fake_tasks.end(5) == []
    await bus.close()
    await fake_bus.close()


def trusting(cert: Path | None) -> ssl.SSLContext | bool:
    return NO_TLS if cert is None else ssl.create_default_context(cafile=str(cert))


@pytest.fixture
async def rig(nats_url: str) -> AsyncIterator[Rig]:
    async with running_rig(nats_url) as rig:
        yield rig
