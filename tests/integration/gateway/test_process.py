"""The gateway as a process: start, clear refusals to start, SIGTERM."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process

import httpx
import pytest

pytestmark = pytest.mark.integration


async def start(nats_url: str, fds: tuple[int, ...] = (), **extra: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.gateway",
        env={
            **os.environ,
            "MOONPOOL_NATS_URL": nats_url,
            "MOONPOOL_MODEL": "dummy:tiny",
            "MOONPOOL_HTTP_PORT": "0",
            **extra,
        },
        stderr=PIPE,
        pass_fds=fds,
    )


async def said(process: Process, what: str) -> str:
    """The first line of the log with `what` in it."""
    assert process.stderr is not None
    async with asyncio.timeout(20):
        async for line in process.stderr:
            if what in line.decode():
                return line.decode()
    raise AssertionError(f"the gateway ended without saying {what!r}")


async def test_a_gateway_is_live_without_a_cluster_and_ends_with_0_on_sigterm(
    nats_url: str,
) -> None:
    process = await start(nats_url)
    try:
        url = (await said(process, "serves http")).split("serves ")[1].strip()
        async with httpx.AsyncClient(base_url=url.removesuffix("/v1")) as http:
            assert (await http.get("/live")).status_code == 200
            assert (await http.get("/ready")).status_code == 503
            body = {"model": "dummy:tiny", "prompt": "a"}
            refused = await http.post("/v1/completions", json=body)
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await process.communicate()
    assert process.returncode == 0


async def test_a_port_that_is_taken_is_told_by_its_setting(nats_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = await start(nats_url, MOONPOOL_HTTP_PORT=port)
        assert f"MOONPOOL_HTTP_PORT={port}" in await said(process, "cannot listen")
        async with asyncio.timeout(10):
            await process.communicate()
    assert process.returncode == 1


async def test_who_waits_at_a_socket_that_was_given_is_served_by_the_next_process(
    nats_url: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, fd = listening.getsockname()[1], listening.fileno()
        given = {"MOONPOOL_HTTP_PORT": str(port), "MOONPOOL_HTTP_FD": str(fd)}
        first = await start(nats_url, (fd,), **given)
        await said(first, "serves http")
        first.kill()
        await first.communicate()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            waiting = asyncio.ensure_future(http.get("/live"))
            second = await start(nats_url, (fd,), **given)
            try:
                assert (await waiting).status_code == 200
            finally:
                second.send_signal(signal.SIGTERM)
                second.send_signal(signal.SIGINT)
                async with asyncio.timeout(20):
                    await second.communicate()
    assert second.returncode == 0


@pytest.mark.parametrize("is_open", [True, False])
async def test_what_is_no_listening_socket_is_told_by_its_setting(
    nats_url: str, is_open: bool
) -> None:
    with socket.socket() as idle:
        fds = (idle.fileno(),) if is_open else ()
        process = await start(nats_url, fds, MOONPOOL_HTTP_FD=str(idle.fileno()))
        assert f"MOONPOOL_HTTP_FD={idle.fileno()}: " in await said(process, "listening socket")
        async with asyncio.timeout(10):
            await process.communicate()
    assert process.returncode == 1


async def test_a_model_that_is_not_there_is_told_by_its_setting(nats_url: str) -> None:
    process = await start(nats_url, MOONPOOL_MODEL="dummy:nothing")
    assert "MOONPOOL_MODEL=dummy:nothing" in await said(process, "unknown preset")
    async with asyncio.timeout(10):
        await process.communicate()
    assert process.returncode == 1
