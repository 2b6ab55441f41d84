"""A worker as a process: it agrees on the format before it is ready, and SIGTERM drains it."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.engine.loaded_model import LoadedModel
from shared.messages import subjects
from shared.messages.index import ClaimFormat, ClaimReply
from shared.messages.reports import InstanceReport
from shared.runtime.bus import Bus
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks
from tests.support.deadline import until
from tests.support.processes import ServiceProcess
from tests.support.reference_answers import MODEL
from tests.support.servers import TestServer
from tests.support.worker_bench import LOG

pytestmark = pytest.mark.integration


@pytest.fixture
def worker_folder() -> Iterator[Path]:
    prefix = f"moonpool-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def worker(
    own_nats: TestServer, worker_folder: Path, tmp_path: Path, engine_cache: Path
) -> Iterator[ServiceProcess]:
    """A decode process and the transfer it needs; no cache-index answers yet."""
    common = {"nats_url": own_nats.url, "shared_dir": worker_folder, "drain_timeout_s": 1}
    with (
        ServiceProcess(
            "transfer", tmp_path / "t.log", instance_id="a", pool_bytes=8 << 20, **common
        ),
        ServiceProcess(
            "decode",
            tmp_path / "d.log",
            instance_id="d",
            model=MODEL,
            cache_dir=engine_cache,
            **common,
        ) as process,
    ):
        yield process


@pytest.fixture
async def own_bus(own_nats: TestServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(own_nats.url, name="test")
    yield bus
    await bus.close()


async def answer_claims(bus: Bus, tasks: Tasks, **changes: object) -> None:
    async def claim(message: ClaimFormat) -> ClaimReply:
        current = {**message.kv_format, **changes}
        return ClaimReply(is_accepted=not changes, current=current)

    index = MicroService(bus, tasks, LOG)
    endpoint = Endpoint(
        "claim", subjects.INDEX_CLAIM_FORMAT, ClaimFormat, ClaimReply, claim, "claims"
    )
    await index.start(
        name="index", version="0.0.1", description="i", metadata={}, endpoints=[endpoint]
    )


async def test_a_worker_waits_for_the_index_serves_and_ends_cleanly_on_sigterm(
    worker: ServiceProcess, own_bus: Bus, loaded: LoadedModel
) -> None:
    reports: list[InstanceReport] = []
    await own_bus.subscribe(subjects.report("decode", "d"), InstanceReport, reports.append)
    await until(lambda: "waiting for cache-index" in worker.log(), timeout_s=30, what="it says so")
    assert not reports
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, LOG)
        await answer_claims(own_bus, tasks)
        await until(lambda: reports, what="a report")
        assert reports[-1].state == "ready"
        assert reports[-1].root == loaded.kv_format.root()
        assert (reports[-1].node, reports[-1].capacity_tokens) == ("a", 16_384)
        assert await asyncio.to_thread(worker.end, signal.SIGTERM) == 0
        assert await tasks.end(5) == []


async def test_a_worker_with_another_format_ends_and_names_the_field(
    worker: ServiceProcess, own_bus: Bus
) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, LOG)
        await answer_claims(own_bus, tasks, dtype="bfloat16")
        await until(lambda: "cannot go on" in worker.log(), timeout_s=30, what="it ends")
        assert "dtype: 'float32' != 'bfloat16'" in worker.log()
        assert await asyncio.to_thread(worker.end, signal.SIGTERM) == 1
        assert await tasks.end(5) == []
