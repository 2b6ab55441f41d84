"""A host of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.transfer_node import TransferHost


@pytest.fixture
def host(nats_url: str, tmp_path: Path) -> Iterator[TransferHost]:
    with TransferHost(nats_url, tmp_path) as host:
        yield host
