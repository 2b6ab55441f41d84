"""A trace played against a live cluster of dummy workers, and what it costs put in a profile."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.simulator.hardware import load_hardware
from tests.conftest import StartCluster
from tests.support.cluster import HostedCluster
from tests.support.processes import nats_variables

pytestmark = pytest.mark.e2e


def command(
    cluster: HostedCluster, *arguments: str, timeout_s: float = 100
) -> subprocess.CompletedProcess[str]:
    own = nats_variables(cluster.cluster.nats_access)
    return subprocess.run(
        [sys.executable, "-P", "-m", "scripts.cli.main", *arguments, "--json"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **{f"MOONPOOL_{name.upper()}": value for name, value in own.items()},
            "MOONPOOL_URL": cluster.base_url,
            "MOONPOOL_NATS_URL": cluster.nats_url,
            "MOONPOOL_ADMIN_KEY": cluster.admin_key,
        },
        timeout=timeout_s,
        check=False,
    )


def write_trace(path: Path) -> None:
    """Twelve requests, four documents of two blocks: each is read three times."""
    lines = []
    for number in range(12):
        first = number % 4 * 10
        lines.append(
            {
                "timestamp": number * 200,
                "input_length": 1_300,
                "output_length": 12,
                "hash_ids": [first, first + 1, 100 + number],
            }
        )
    path.write_text("\n".join(json.dumps(line) for line in lines))


def replayed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


@pytest.mark.timeout(120)
def test_replay_reads_each_document_once_and_compares_policies(
    dummy_cluster: HostedCluster, tmp_path: Path
) -> None:
    trace = tmp_path / "t.jsonl"
    write_trace(trace)
    plot = tmp_path / "out.html"
    shown = replayed(
        command(
            dummy_cluster, "replay", "--trace", str(trace), "--compare",
            "local_cache_aware,moonpool", "--plot", str(plot),
        )
    )  # fmt: skip
    assert [run["run"] for run in shown["runs"]] == ["local_cache_aware", "moonpool"]
    for run in shown["runs"]:
        assert (run["served"], run["failed"]) == (12, {})
        assert run["mean_ttft_s"] > 0
        assert run["p99_itl_s"] > 0
        assert run["prediction_error"]["ttft"]["num_requests"] == 12
        # 8 of 12 find two blocks of 512 tokens, whole grid chunks of them, if they came late.
        assert run["cached_tokens"] > 0
        assert run["cached_tokens"] <= 8 * 1_024
    assert "<svg" in plot.read_text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_coupled_workers_do_both_and_get_their_roles_back(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster()
    write_trace(tmp_path / "t.jsonl")
    shown = replayed(
        command(cluster, "replay", "--trace", str(tmp_path / "t.jsonl"), "--compare", "coupled")
    )
    (run,) = shown["runs"]
    assert (run["run"], run["served"], run["failed"]) == ("coupled", 12, {})
    assert run["fetched_bytes"] == run["streamed_bytes"] == 0
    state = replayed(command(cluster, "status"))
    roles = {(one["service"], one["id"]) for one in state["instances"] if one["state"] == "ready"}
    assert roles == {(role, f"{role}-{n}") for role in ("prefill", "decode") for n in (1, 2)}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_calibrate_writes_a_profile_that_the_simulator_reads(
    dummy_cluster: HostedCluster, tmp_path: Path
) -> None:
    out = tmp_path / "here.json"
    shown = replayed(command(dummy_cluster, "bench", "calibrate", "--out", str(out)))
    assert shown["link_measured"]
    hardware = load_hardware(str(out))
    assert hardware.prefill_s(1_024, 0) > hardware.prefill_s(1_024, 768) > 0
    assert hardware.decode_step_s > 0
    assert (tmp_path / "here.conductor.json").is_file()
    write_trace(tmp_path / "t.jsonl")
    shown = replayed(
        command(
            dummy_cluster, "replay", "--trace", str(tmp_path / "t.jsonl"), "--scale", "2",
            "--simulate", "--hardware", str(out),
        )
    )  # fmt: skip
    simulated = shown["runs"][0]["simulated"]
    # Times of a busy machine prove nothing; what is cached does not depend on them.
    assert simulated["ttft_to_live"] > 0
    assert simulated["cached_tokens"] == pytest.approx(8 * 512, rel=0.3)
