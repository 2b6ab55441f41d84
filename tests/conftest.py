"""Fixtures of all tests: servers by worker, clusters, and the check that nothing is left."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scripts.launcher.options import ClusterOptions
from tests.support import leaks, sharing
from tests.support.cluster import HostedCluster, dummy_options
from tests.support.servers import TestServer, nats_server, redis_server

StartCluster = Callable[..., HostedCluster]
FEW_TOKENS = 4
"""Of an answer where a request does not say: more of the dummy's tokens would show no more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = sharing.in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> sharing.SharedClusters | None:
    is_by_file = config.getoption("dist") == "loadfile"
    return sharing.SharedClusters(config, log) if is_by_file else None


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Torn down last: no process, folder or shared memory of this worker may be there."""
    before = leaks.children()
    yield
    left = [child for child in leaks.children() if child not in before]
    assert not left, f"tests left processes: {left}"
    assert not leaks.folders(), f"tests left folders: {leaks.folders()}"


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server for all tests of this worker."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server for all tests of this worker; use keys of your own, or flush it."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What engines keep on disk, made once for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "engine-cache"
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def cache_dir(tmp_path: Path, engine_cache: Path) -> Path:
    """One of the test's own, but for the kernels: a compiler works on them for seconds."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "kernels").symlink_to(engine_cache / "kernels")
    return folder


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[TestServer]:
    """A NATS server that the test may stop and start."""
    with nats_server(tmp_path / "own-nats") as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[TestServer]:
    """A Redis server that the test may stop, start and flush."""
    with redis_server(tmp_path / "own-redis") as server:
        yield server


@pytest.fixture(scope="session")
def dummy_cluster() -> Iterator[HostedCluster]:
    """Two nodes of dummy:tiny for all tests that leave it as they found it."""
    short = {"gateway": {"MOONPOOL_DEFAULT_MAX_TOKENS": str(FEW_TOKENS)}}
    with HostedCluster(dummy_options(extra_env=short)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def one_real_cluster() -> Iterator[None]:
    """Held while a cluster of the real model runs: one at a time on this machine."""
    # A lock on the folder itself leaves no file behind.
    lock = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@pytest.fixture(scope="module")
def real_cluster(one_real_cluster: None) -> Iterator[HostedCluster]:
    """Two nodes of the real model for the tests of one file, which break nothing."""
    with HostedCluster(ClusterOptions(drain_timeout_s=2.0)) as cluster:
        yield cluster


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """`start_cluster(nodes=1, gateways=2)`: a dummy cluster of the test's own, ready to use."""
    with ExitStack() as stack:

        def start(**changes: Any) -> HostedCluster:
            return stack.enter_context(HostedCluster(dummy_options(**changes)))

        yield start
