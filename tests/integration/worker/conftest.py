"""Two nodes inside the test process and the four workers on them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.engine.loaded_model import LoadedModel
from shared.worker.pool_session import PoolSession, geometry_of
from shared.worker.settings import WorkerSettings
from tests.support.fake_pool import FakeNode
from tests.support.reference_answers import BFLOAT16, FLOAT32, ModelFormat, reference_model
from tests.support.two_nodes import NUM_SLOTS, TwoNodes
from tests.support.worker_bench import worker_bench

SMALL_BLOCKS = ModelFormat(block_tokens=64)


@pytest.fixture(scope="session")
def loaded(engine_cache: Path) -> LoadedModel:
    return reference_model(engine_cache)


@asynccontextmanager
async def two_nodes(
    nats_url: str,
    folder: Path,
    loaded: LoadedModel,
    patch: pytest.MonkeyPatch,
    num_slots: int,
    wanted: ModelFormat = FLOAT32,
) -> AsyncIterator[TwoNodes]:
    peers: dict[str, FakeNode] = {}
    geometry = geometry_of(loaded.layout)
    a = FakeNode("a", geometry, num_slots, peers)
    b = FakeNode("b", geometry, num_slots, peers)

    async def open_fake(
        settings: WorkerSettings, model: LoadedModel, _role: str, incarnation: str, _s: float
    ) -> PoolSession:
        pool: Any = peers[settings.node or ""].attach(
            f"{settings.instance_id} {incarnation}", num_slots
        )
        return PoolSession(pool, model.layout)

    patch.setattr("shared.worker.pool_session.open_session", open_fake)
    async with worker_bench(nats_url, folder, folder) as bench:
        bench.format = wanted
        yield TwoNodes(
            bench,
            a,
            b,
            await bench.start_worker("prefill", "a"),
            await bench.start_worker("decode", "a"),
            await bench.start_worker("prefill", "b"),
            await bench.start_worker("decode", "b"),
        )


@pytest.fixture
async def nodes(
    nats_url: str, engine_cache: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TwoNodes]:
    async with two_nodes(nats_url, engine_cache, loaded, monkeypatch, NUM_SLOTS) as made:
        yield made


@pytest.fixture
async def small_block_nodes(
    nats_url: str, engine_cache: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TwoNodes]:
    """Blocks of a quarter of the grid."""
    small = reference_model(engine_cache, SMALL_BLOCKS)
    async with two_nodes(
        nats_url, engine_cache, small, monkeypatch, 4 * NUM_SLOTS, SMALL_BLOCKS
    ) as made:
        yield made


@pytest.fixture
async def bf16_nodes(
    nats_url: str, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TwoNodes]:
    loaded = reference_model(engine_cache, BFLOAT16)
    async with two_nodes(nats_url, engine_cache, loaded, monkeypatch, NUM_SLOTS, BFLOAT16) as made:
        yield made
