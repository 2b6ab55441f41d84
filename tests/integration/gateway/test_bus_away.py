"""NATS goes away under a gateway and comes back: nothing is lost but time."""

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.integration.gateway.conftest import Rig, running_rig
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]}


async def ask(rig: Rig) -> Any:
    return await rig.http.post("/v1/chat/completions", json=BODY)


def is_taken(rig: Rig) -> bool:
    """Both instances have said that they took the run: until then a bus that stops loses it."""
    is_asked = any(task.get_name().startswith("run ") for task in asyncio.all_tasks())
    return bool(rig.cluster.get("d0").runs) and not is_asked


async def test_a_request_outlives_a_restart_of_nats(own_nats: TestServer) -> None:
    async with running_rig(own_nats.url) as rig:
        decode = rig.cluster.get("d0")
        decode.open.clear()
        answering = asyncio.ensure_future(ask(rig))
        await until(lambda: decode.runs, what="decode runs")
        await asyncio.to_thread(own_nats.stop)
        await until(lambda: not rig.context.bus.is_connected, what="cut off")
        assert (await rig.http.get("/health")).status_code == 503
        assert (await rig.http.get("/live")).status_code == 200
        await asyncio.to_thread(own_nats.start)
        await until(
            lambda: rig.context.bus.is_connected and rig.cluster.bus.is_connected, what="back"
        )
        assert (await rig.http.get("/health")).status_code == 200
        decode.open.set()
        response = await answering
        assert response.json()["choices"][0]["message"]["content"] == "Hello, moon!"


async def test_a_stopped_nats_is_not_taken_for_dead_instances(own_nats: TestServer) -> None:
    async with running_rig(own_nats.url) as rig:
        decode = rig.cluster.get("d0")
        decode.open.clear()
        answering = asyncio.ensure_future(ask(rig))
        await until(lambda: is_taken(rig), what="the gateway knows that both run it")
        os.kill(own_nats.pid, signal.SIGSTOP)
        try:
            # Longer than the lease: an instance as silent as this would be given up.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(answering), 4.5)
        finally:
            os.kill(own_nats.pid, signal.SIGCONT)
        decode.open.set()
        response = await answering
        assert response.json()["choices"][0]["message"]["content"] == "Hello, moon!"
        assert len(rig.cluster.places) == 1
