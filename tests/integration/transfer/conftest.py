"""A host of its own for each test. Its nodes map one another's memory, or have streams alone."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.runtime.bus import Bus
from tests.support.transfer_node import TransferHost


@pytest.fixture
def host(nats_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TransferHost]:
    with TransferHost(nats_url, tmp_path, getattr(request, "param", "local")) as host:
        yield host


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_url, name="test")
    yield bus
    await bus.close()
