"""How the embedded NATS server is started."""

import os
from pathlib import Path

import pytest

from scripts.embedded.nats_server import FEW_CORES, NatsServer


@pytest.mark.parametrize(
    ("num_cores", "env"),
    [(1, {"GOMAXPROCS": "1"}), (FEW_CORES, {"GOMAXPROCS": "1"}), (FEW_CORES + 1, {})],
)
def test_on_few_cores_the_server_takes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_cores: int, env: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(num_cores)))
    server = NatsServer(tmp_path)
    try:
        assert dict(server.spec.env) == env
    finally:
        server.close()
