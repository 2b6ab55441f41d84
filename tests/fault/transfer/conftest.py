"""A host of its own for each test. Its nodes map one another's memory, or have streams alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.transfer_node import TransferHost


@pytest.fixture
def host(nats_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TransferHost]:
    with TransferHost(nats_url, tmp_path, getattr(request, "param", "local")) as host:
        yield host
