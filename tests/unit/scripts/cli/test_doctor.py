"""What a machine lacks is named with what to do; a machine that is fine exits with 0."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scripts.cli.main import make_app
from scripts.cli.output import CommandError
from scripts.doctor import machine
from services.transfer.settings import TransferSettings
from shared.transport.node_files import NodeFiles, NodeLock
from shared.transport.topology import Nic, Topology


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **settings: str) -> tuple[int, Any]:
    monkeypatch.setenv("MOONPOOL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MOONPOOL_SHARED_DIR", str(tmp_path / "shared"))
    # No cluster that runs on this machine is found.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name, value in settings.items():
        monkeypatch.setenv(f"MOONPOOL_{name.upper()}", value)
    result = CliRunner().invoke(make_app(), ["doctor", "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def test_a_machine_that_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, shown = run(monkeypatch, tmp_path, pool_bytes="1000000", transports="local,tcp")
    assert (code, shown["ok"]) == (0, True)
    found = {check["name"]: check["found"] for check in shown["checks"]}
    assert found["transport local"] == "there"
    assert found["transport tcp"].startswith("would listen at ")
    assert found["copies"].split(" ")[0] in ("native", "numpy")
    assert any(memory.startswith("cpu:") for memory in shown["topology"]["matrix"])


def test_a_pool_that_does_not_fit_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, shown = run(monkeypatch, tmp_path, pool_bytes=str(1 << 60), transports="local")
    assert (code, shown["ok"]) == (1, False)
    (problem,) = [check["problem"] for check in shown["checks"] if not check["ok"]]
    assert "lower MOONPOOL_POOL_BYTES" in problem


def test_a_transport_that_cannot_be_opened_is_a_problem_when_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = "no-such-host.invalid"
    code, shown = run(monkeypatch, tmp_path, transports="tcp", tcp_host=host, pool_bytes="4096")
    assert code == 1
    assert f"MOONPOOL_TCP_HOST={host}" in json.dumps(shown["checks"])
    code, shown = run(monkeypatch, tmp_path, transports="local,tcp")
    assert code == 0
    assert f"MOONPOOL_TCP_HOST={host}" in json.dumps(shown["checks"])


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"MOONPOOL_TRANSPORTS: .*'tpc' is no transport"):
        run(monkeypatch, tmp_path, transports="tpc")


def test_servers_that_nobody_names_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, shown = run(monkeypatch, tmp_path, pool_bytes="4096", transports="local")
    found = {check["name"]: check["found"] for check in shown["checks"]}
    assert found["NATS"].endswith("MOONPOOL_NATS_URL is not set")
    assert found["Redis"].endswith("MOONPOOL_REDIS_URL is not set")


def problems(shown: Any) -> dict[str, str]:
    return {check["name"]: check["problem"] for check in shown["checks"] if not check["ok"]}


def test_a_nats_and_a_redis_where_nobody_is_are_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("scripts.cli.target.CONNECT_TIMEOUT_S", 0.2)
    given = {"nats_url": "nats://user:secret@127.0.0.1:1", "redis_url": "redis://127.0.0.1:1"}
    code, shown = run(monkeypatch, tmp_path, pool_bytes="4096", transports="local", **given)
    assert code == 1
    assert "correct MOONPOOL_NATS_URL" in problems(shown)["NATS"]
    assert "correct MOONPOOL_REDIS_URL" in problems(shown)["Redis"]
    assert "secret" not in json.dumps(shown)


def test_a_model_that_is_not_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"pool_bytes": "4096", "transports": "local", "model": "no-such-model"}
    code, shown = run(monkeypatch, tmp_path, **given)
    assert code == 1
    assert "no such model" in problems(shown)["model"]


def test_huge_pages_are_a_problem_only_where_they_are_required() -> None:
    meminfo = {"HugePages_Total": 10, "HugePages_Free": 3, "Hugepagesize": 2_048}
    for wanted, pool_bytes, has_problem in (
        ("off", 1 << 30, False),
        ("try", 1 << 30, False),
        ("require", 1 << 30, True),
        ("require", 6 << 20, False),
    ):
        settings = TransferSettings(huge_pages=wanted, pool_bytes=pool_bytes)
        check = machine.huge_pages(settings, meminfo)
        assert bool(check.problem) == has_problem, (wanted, pool_bytes)
        if has_problem:
            assert "vm.nr_hugepages=519" in check.problem


def test_locked_memory_is_a_problem_only_where_rdma_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"now": (8 << 20, -1)}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: limits["now"])
    settings = TransferSettings(pool_bytes=1 << 30)
    assert not machine.locked_memory(settings, has_rdma=False).problem
    assert "ulimit -l" in machine.locked_memory(settings, has_rdma=True).problem
    limits["now"] = (-1, -1)
    assert not machine.locked_memory(settings, has_rdma=True).problem


def test_links_say_their_speed() -> None:
    nics = (
        Nic("mlx5_0", is_rdma=True, is_up=True, gbit_per_s=100.0, numa_node=0, pci=()),
        Nic("eth0", is_rdma=False, is_up=False, gbit_per_s=None, numa_node=0, pci=()),
    )
    found = [check.found for check in machine.links(Topology({0: "0-3"}, nics, ()))]
    assert found == ["mlx5_0 (100 Gbit/s)", "eth0 (speed not known, down)"]


def test_the_clock_is_one_that_can_be_read() -> None:
    assert "synchronised" in machine.clock().found


def test_nodes_that_run_here_are_counted_whoever_started_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.launcher.run_folder.SHARED_MEMORY", tmp_path)
    locks = []
    for folder, node, is_alive in (
        ("shared", "own", True),
        ("moonpool-1-abc", "n1", True),
        ("moonpool-1-abc", "n2", True),
        ("moonpool-2-xyz", "dead", False),
        ("other-1-abc", "stranger", True),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        lock = NodeLock(NodeFiles(tmp_path / folder, node, "1"))
        locks.append(lock)
        if not is_alive:
            lock.release()
    settings = TransferSettings(shared_dir=tmp_path / "shared", pool_bytes=4096)
    assert machine.shared_memory(settings).found.endswith(", 3 nodes here")
    for lock in locks:
        lock.release()
    assert machine.shared_memory(settings).found.endswith(", 0 nodes here")
