"""The end of a gateway: what its clients see from SIGTERM until the last of them has left."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.credentials.certificates import Authority
from services.gateway import http_server
from tests.integration.gateway.conftest import Rig, running_rig, trusting
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL

pytestmark = pytest.mark.integration
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello, moon."}]}
GRACE_S = 0.5


@asynccontextmanager
async def kept(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    """A client with one open connection."""
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=rig.url, timeout=20, limits=limits) as client:
        first = await client.get("/live")
        assert "connection" not in first.headers
        yield client


async def chat(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={**CHAT, **more})


def begin_drain(rig: Rig) -> "asyncio.Future[None]":
    rig.context.state = "draining"
    return asyncio.ensure_future(rig.service.drain())


def key_of(cert: Path) -> Path:
    return cert.with_suffix(".key")


def write_certificate(cert: Path) -> Path:
    """With its authority, so that a client can verify it by the same file."""
    authority = Authority()
    authority.write_server(["127.0.0.1"], cert, key_of(cert))
    cert.write_bytes(cert.read_bytes() + authority.pem)
    return cert


async def is_refused(rig: Rig) -> bool:
    try:
        async with httpx.AsyncClient(base_url=rig.url, timeout=20) as client:
            await client.get("/live")
    except httpx.ConnectError:
        return True
    return False


async def test_readiness_goes_first_while_all_is_still_served(nats_url: str) -> None:
    async with running_rig(nats_url, drain_grace_s=60.0) as rig, kept(rig) as client:
        draining = begin_drain(rig)
        async with httpx.AsyncClient(base_url=rig.url, timeout=20) as balancer:
            await until(lambda: rig.service.missing, what="it drains")
            asked = await balancer.get("/ready")
        assert (asked.status_code, asked.headers["connection"]) == (503, "close")
        async with httpx.AsyncClient(base_url=rig.url, timeout=20) as newcomer:
            assert (await chat(newcomer)).status_code == 200
        answer = await chat(client)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert not draining.done()
        rig.context.hurried.set()
        await asyncio.wait_for(draining, 10)


async def test_what_comes_on_open_connections_is_answered_after_the_last_one_was_taken(
    nats_url: str,
) -> None:
    async with running_rig(nats_url, drain_grace_s=0.0) as rig, kept(rig) as client:
        decode = rig.cluster.get("d0")
        decode.open.clear()
        streamed = {**CHAT, "stream": True}
        async with rig.http.stream("POST", "/v1/chat/completions", json=streamed) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            draining = begin_drain(rig)
            await until(lambda: is_refused(rig), what="it takes no more connections")
            assert not draining.done()
            decode.open.set()
            assert "data: [DONE]" in [line async for line in lines]
        # The stream began with the word that its connection stays: so it is good for one more.
        assert "connection" not in stream.headers
        for one in (rig.http, client):
            answer = await chat(one)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        await asyncio.wait_for(draining, 10)
        assert rig.service.num_in_flight == 0


async def test_an_idle_connection_ends_when_no_client_would_use_it_any_more(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CLIENT_IDLE_S", 0.3)
    async with running_rig(nats_url, drain_grace_s=0.0) as rig, kept(rig):
        await asyncio.wait_for(begin_drain(rig), 10)


async def test_in_a_hurry_open_connections_are_not_waited_for_and_new_requests_are_refused(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CLIENT_IDLE_S", 600.0)
    async with running_rig(nats_url, drain_grace_s=600.0) as rig, kept(rig) as client:
        decode = rig.cluster.get("d0")
        decode.open.clear()
        streaming = asyncio.ensure_future(chat(rig.http, stream=True))
        await until(lambda: decode.runs, what="decode runs")
        rig.context.hurried.set()
        draining = begin_drain(rig)
        await until(lambda: is_refused(rig), what="it takes no more connections")
        refused = await chat(client)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        assert not draining.done()
        decode.open.set()
        assert (await streaming).status_code == 200
        await asyncio.wait_for(draining, 10)


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_successor_takes_the_socket_over_without_one_refused_connection(
    nats_url: str, is_tls: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http_server, "CLIENT_IDLE_S", 0.5)
    cert = tmp_path / "cert.pem" if is_tls else None
    verify = trusting(cert if cert is None else write_certificate(cert))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        settings = {
            "instance_id": f"gw-{secrets.token_hex(4)}",
            "http_port": listening.getsockname()[1],
            "http_cert": cert,
            "http_key": cert and key_of(cert),
            # It would wait for a successor longer than the test may take.
            "drain_timeout_s": 600.0,
        }
        async with running_rig(nats_url, http_fd=os.dup(listening.fileno()), **settings) as old:
            over, num_right = asyncio.Event(), 0

            async def ask_on() -> None:
                nonlocal num_right
                while not over.is_set():
                    async with httpx.AsyncClient(
                        base_url=old.url, timeout=20, verify=verify
                    ) as client:
                        answer = await chat(client)
                        assert answer.status_code == 200, answer.text
                    num_right += 1

            async def more_are_right(what: str) -> None:
                wanted = num_right + 20
                await until(lambda: num_right >= wanted, timeout_s=20, what=what)

            async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(ask_on())
                await more_are_right("it answers")
                draining = begin_drain(old)
                await more_are_right("it answers while it drains")
                fd = os.dup(listening.fileno())
                new = await stack.enter_async_context(
                    running_rig(nats_url, beside=old, http_fd=fd, **settings)
                )
                assert new.url == old.url
                await until(draining.done, timeout_s=20, what="the old one has made way")
                await more_are_right("the new one answers")
                over.set()


async def test_without_a_successor_the_next_process_need_not_wait_for_long_answers(
    nats_url: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = {"http_port": listening.getsockname()[1], "drain_timeout_s": 0.5}
        fd = os.dup(listening.fileno())
        async with running_rig(nats_url, http_fd=fd, **settings) as rig:
            decode = rig.cluster.get("d0")
            decode.open.clear()
            streaming = asyncio.ensure_future(chat(rig.http, stream=True))
            await until(lambda: decode.runs, what="decode runs")
            assert rig.context.longest_drain_s > 60
            await asyncio.wait_for(begin_drain(rig), 20)
            assert rig.service.num_in_flight == 1
            decode.open.set()
            assert (await streaming).status_code == 200
