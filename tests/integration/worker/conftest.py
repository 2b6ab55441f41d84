"""Two nodes inside the test process and the four workers on them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.engine.loaded_model import LoadedModel
from shared.worker.pool_session import PoolSession, geometry_of
from shared.worker.settings import WorkerSettings
from tests.support.fake_pool import FakeNode
from tests.support.two_nodes import NUM_SLOTS, TwoNodes
from tests.support.worker_bench import reference_model, worker_bench


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return reference_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def nodes(
    nats_url: str, tmp_path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TwoNodes]:
    peers: dict[str, FakeNode] = {}
    geometry = geometry_of(loaded.layout)
    a = FakeNode("a", geometry, NUM_SLOTS, peers)
    b = FakeNode("b", geometry, NUM_SLOTS, peers)

    async def open_fake(
        settings: WorkerSettings, model: LoadedModel, _role: str, incarnation: str, _s: float
    ) -> PoolSession:
        pool: Any = peers[settings.node or ""].attach(
            f"{settings.instance_id} {incarnation}", NUM_SLOTS
        )
        return PoolSession(pool, model.layout)

    monkeypatch.setattr("shared.worker.instance.open_session", open_fake)
    async with worker_bench(nats_url, tmp_path, tmp_path) as bench:
        yield TwoNodes(
            bench,
            a,
            b,
            await bench.start_worker("prefill", "a"),
            await bench.start_worker("decode", "a"),
            await bench.start_worker("prefill", "b"),
            await bench.start_worker("decode", "b"),
        )
