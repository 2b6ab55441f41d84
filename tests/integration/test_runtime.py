"""The bus and micro services against a real NATS server, and a whole service as a process."""

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.messages.common import Empty, ErrorCode, Ok, RequestRef
from shared.messages.envelope import Message
from shared.messages.prefill import Cancel
from shared.runtime.bus import Bus
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks
from tests.support.deadline import until

pytestmark = pytest.mark.integration
LOG = logging.getLogger("test")
REF = RequestRef(request_id="r", gateway="g", gateway_incarnation="i")


class Number(Message):
    value: int


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="test")
    yield bus
    await bus.close()


async def test_endpoints_run_concurrently_and_answer_in_the_encoding_they_were_asked_in(
    bus: Bus,
) -> None:
    both_run = asyncio.Barrier(2)

    async def double(number: Number) -> Number:
        async with asyncio.timeout(5):
            await both_run.wait()
        return Number(value=number.value * 2)

    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, LOG)
        service = MicroService(bus, tasks, LOG)
        endpoint = Endpoint("double", "moonpool.t.double", Number, Number, double, "doubles")
        await service.start(
            name="t", version="0.0.1", description="t", metadata={}, endpoints=[endpoint]
        )
        first, raw = await asyncio.gather(
            bus.request("moonpool.t.double", Number(value=2), Number, timeout_s=5),
            bus.client.request("moonpool.t.double", b'{"value": 5}', timeout=5),
        )
        assert first.value == 4
        assert json.loads(raw.data)["value"] == 10
        await service.stop()


async def test_errors_arrive_as_the_service_error_that_was_raised(bus: Bus) -> None:
    async def refuse(_: Cancel) -> Ok:
        raise ServiceError(ErrorCode.OVERLOADED, "full,\ntry later", retry_after_s=1.5)

    async with asyncio.TaskGroup() as group:
        service = MicroService(bus, Tasks(group, LOG), LOG)
        endpoint = Endpoint("refuse", "moonpool.t.refuse", Cancel, Ok, refuse, "refuses")
        await service.start(
            name="t", version="0.0.1", description="t", metadata={}, endpoints=[endpoint]
        )
        with pytest.raises(ServiceError) as caught:
            await bus.request("moonpool.t.refuse", Cancel(ref=REF), Ok, timeout_s=5)
        assert caught.value.code == ErrorCode.OVERLOADED
        assert caught.value.retry_after_s == 1.5
        bad = await bus.client.request("moonpool.t.refuse", b"\xff\xff", timeout=5)
        assert bad.headers is not None
        assert bad.headers["Nats-Service-Error-Code"] == "400"
        await service.stop()


async def test_statistics_tell_how_long_handlers_worked_and_what_failed(bus: Bus) -> None:
    may_end = asyncio.Event()

    async def work(number: Number) -> Number:
        if number.value == 0:
            raise ServiceError(ErrorCode.OVERLOADED, "full")
        await may_end.wait()
        return number

    async def stats(name: str) -> dict[str, Any]:
        answer = await bus.client.request(f"$SRV.STATS.{name}", b"", timeout=5)
        (endpoint,) = json.loads(answer.data)["endpoints"]
        return dict(endpoint)

    async with asyncio.TaskGroup() as group:
        service = MicroService(bus, Tasks(group, LOG), LOG)
        name = f"stats-{secrets.token_hex(4)}"
        subject = f"moonpool.t.{name}"
        endpoint = Endpoint("work", subject, Number, Number, work, "works")
        await service.start(
            name=name, version="0.0.1", description="t", metadata={}, endpoints=[endpoint]
        )
        asking = asyncio.ensure_future(bus.request(subject, Number(value=1), Number, timeout_s=5))

        async def has(num_requests: int, running: int) -> bool:
            said = await stats(name)
            return (said["num_requests"], said["data"]["running"]) == (num_requests, running)

        await until(lambda: has(1, 1), what="it runs")
        started_s = time.monotonic()
        await asyncio.sleep(0.05)  # the time that is measured
        may_end.set()
        await asking
        worked_ns = int((time.monotonic() - started_s) * 1e9)
        with pytest.raises(ServiceError):
            await bus.request(subject, Number(value=0), Number, timeout_s=5)
        await until(lambda: has(2, 0), what="all has ended")
        said = await stats(name)
        assert (said["num_requests"], said["num_errors"]) == (2, 1)
        assert said["last_error"] == "overloaded:full"
        assert said["processing_time"] >= 0.9 * worked_ns
        assert said["average_processing_time"] == said["processing_time"] // 2
        await service.stop()


async def test_nobody_and_silence_are_told_apart(bus: Bus) -> None:
    with pytest.raises(NoResponder):
        await bus.request("moonpool.t.nobody", Empty(), Ok, timeout_s=5)
    silent = await bus.subscribe("moonpool.t.silent", Empty, lambda _: None)
    with pytest.raises(BusTimeout):
        await bus.request("moonpool.t.silent", Empty(), Ok, timeout_s=0.1)
    await silent.stop()


async def test_who_asks_an_acknowledging_subscription_hears_that_it_was_handled(bus: Bus) -> None:
    seen: list[int] = []

    def handler(number: Number) -> None:
        if number.value == 0:
            raise RuntimeError("planted")
        seen.append(number.value)

    subscription = await bus.subscribe("moonpool.t.ack", Number, handler, is_acknowledged=True)
    await bus.request("moonpool.t.ack", Number(value=7), Ok, timeout_s=5)
    assert seen == [7]
    with pytest.raises(BusTimeout):
        await bus.request("moonpool.t.ack", Number(value=0), Ok, timeout_s=0.1)
    await subscription.stop()


async def test_a_bad_message_or_a_failing_handler_does_not_end_a_subscription(bus: Bus) -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()

    def handler(number: Number) -> None:
        if number.value == 0:
            raise RuntimeError("planted")
        seen.put_nowait(number.value)

    subscription = await bus.subscribe("moonpool.t.numbers", Number, handler)
    await bus.client.publish("moonpool.t.numbers", b"garbage")
    await bus.publish("moonpool.t.numbers", Number(value=0))
    await bus.publish("moonpool.t.numbers", Number(value=7))
    async with asyncio.timeout(5):
        assert await seen.get() == 7
    assert bus.bad_messages_total == 1
    await subscription.stop()


SERVICE = """
import sys
from shared.runtime.lifecycle import Context, run_service
from shared.runtime.settings import CommonSettings

class Probe:
    def __init__(self, settings): pass
    async def start(self, context):
        self.context = context
        if "--crash" in sys.argv:
            async def crash(): raise RuntimeError("planted")
            context.tasks.start_soon(crash(), name="crash")
        await context.serve([])
        context.state = "ready"
        print("ready", flush=True)
    async def drain(self): print("drained", flush=True)
    async def stop(self): print("stopped", flush=True)

run_service("probe", CommonSettings, Probe)
"""


async def _start(nats_url: str, *args: str, **extra: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVICE,
        *args,
        env={**os.environ, "MOONPOOL_NATS_URL": nats_url, **extra},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_sigterm_drains_stops_and_exits_0(nats_url: str) -> None:
    process = await _start(nats_url)
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        rest, _ = await process.communicate()
    assert rest == b"drained\nstopped\n"
    assert process.returncode == 0


async def test_a_crashed_task_ends_the_service_with_1_after_stop(nats_url: str) -> None:
    process = await _start(nats_url, "--crash")
    async with asyncio.timeout(20):
        out, err = await process.communicate()
    assert process.returncode == 1
    assert out.endswith(b"stopped\n")
    assert b"planted" in err


async def test_a_service_waits_for_nats_and_stops_while_waiting() -> None:
    process = await _start("nats://127.0.0.1:1")
    assert process.stderr is not None
    async with asyncio.timeout(20):
        assert b"waiting for NATS at nats://127.0.0.1:1" in await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


async def test_a_bad_setting_ends_the_service_with_its_name(nats_url: str) -> None:
    process = await _start(nats_url, MOONPOOL_DRAIN_TIMEOUT_S="soon")
    async with asyncio.timeout(20):
        _, err = await process.communicate()
    assert process.returncode == 2
    assert b"MOONPOOL_DRAIN_TIMEOUT_S='soon'" in err


@pytest.mark.timeout(150)
async def test_the_health_check_asks_the_process_itself(nats_url: str, tmp_path: Path) -> None:
    health = tmp_path / "health"
    process = await _start(nats_url, MOONPOOL_HEALTH_FILE=str(health))
    assert process.stdout is not None

    async def check() -> int:
        checker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "shared.runtime.healthcheck",
            env={
                **os.environ,
                "MOONPOOL_NATS_URL": nats_url,
                "MOONPOOL_HEALTH_FILE": str(health),
            },
            stderr=asyncio.subprocess.PIPE,
        )
        await checker.communicate()
        assert checker.returncode is not None
        return checker.returncode

    async with asyncio.timeout(140):
        await process.stdout.readline()
        await until(health.exists, timeout_s=60, what="it says that it is ready")
        assert await check() == 0
        told_s = health.stat().st_mtime
        await until(lambda: health.stat().st_mtime > told_s, timeout_s=60, what="it says so again")
        process.kill()
        await process.communicate()
        assert await check() == 1
