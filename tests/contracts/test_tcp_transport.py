"""Two segments in one process and streams between them: TcpTransport against the contract."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.tcp_bench import TcpBench
from tests.contracts.transport_contract import TransportContract


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[TcpBench]:
    bench = await TcpBench.make(tmp_path)
    yield bench
    await bench.close()


class TestTcpTransport(TransportContract):
    pass
