"""The benches as a user runs them, on the tiny dummy model and without any peer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
MOONPOOL = [sys.executable, "-P", "-m", "scripts.cli.main"]
TIMEOUT_S = 150


def moonpool(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "MOONPOOL_CACHE_DIR": str(home / "cache"),
        "XDG_RUNTIME_DIR": str(home),
    }
    return subprocess.run(
        [*MOONPOOL, "bench", *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.slow
def test_the_engine_bench_measures_and_leaves_bars_of_absent_peers_open(tmp_path: Path) -> None:
    groups = ("--only", "prefill", "--only", "self-test")
    done = moonpool(
        tmp_path, "engine", "--quick", "--json", "--model", "dummy:tiny", "--threads", "1", *groups
    )
    report = json.loads(done.stdout)
    bars = {bar["name"]: bar for bar in report["bars"]}
    share = bars["prefill 512 bf16 exact / GEMM limit"]
    assert 0 < share["value"] < 2  # of torch's best; ours may be ahead on shapes this small
    assert share["ok"] is (share["value"] >= 0.22)
    absent = bars["prefill 512 bf16 exact / vLLM CPU"]
    assert absent["value"] is None
    assert absent["ok"] is False
    assert "moonpool bench --setup-peers vllm" in absent["note"]
    assert absent["name"] in report["not_measured"]
    assert bars["self-test fp32, one core"]["ok"] is True
    run = report["runs"]["prefill 512: moonpool fp32"]
    assert run["rounds"] == 2
    assert run["min"] <= run["median"] <= run["max"]
    measured = [bar["ok"] for bar in bars.values() if bar["value"] is not None]
    assert report["ok"] is all(measured)
    assert done.returncode == (0 if report["ok"] else 1)


@pytest.mark.slow
def test_the_overhead_bench_takes_the_engines_time_off(tmp_path: Path) -> None:
    done = moonpool(tmp_path, "overhead", "--requests", "5", "--json")
    report = json.loads(done.stdout)
    median, last = report["bars"]
    assert 0 < median["value"] <= last["value"]
    assert (median["unit"], median["goal"]) == ("ms", "< 5")
    assert report["ok"] is (median["ok"] and last["ok"])
    assert done.returncode == (0 if report["ok"] else 1)


@pytest.mark.slow
def test_the_transfer_bench_measures_bytes_and_services_without_a_peer(tmp_path: Path) -> None:
    done = moonpool(tmp_path, "transfer", "--quick", "--json")
    report = json.loads(done.stdout)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert bars["1 MiB local / memcpy"]["value"] > 0
    assert bars["16 MiB local + xxh3 / memcpy"]["value"] > 0
    absent = bars["put + get, tcp / Mooncake store"]
    assert absent["value"] is None
    assert "moonpool bench --setup-peers mooncake" in absent["note"]
    batches = {batch["name"]: batch for batch in report["store"]["batches"]}
    assert batches["moonpool local"]["get_gb_per_s"] > 0
    assert batches["moonpool tcp"]["put_gb_per_s"] > 0
    assert set(report["store"]["small_us"]) == {"local", "tcp"}


@pytest.mark.slow
def test_the_overlap_bench_reads_what_moved_from_the_bills(tmp_path: Path) -> None:
    done = moonpool(
        tmp_path, "overlap", "--model", "dummy:tiny", "--tokens", "1024", "--prompts", "2", "--json"
    )
    report = json.loads(done.stdout)
    assert len(report["prompts"]) == 2
    for prompt in report["prompts"]:
        assert prompt["transport"] == "tcp"
        assert 0 <= prompt["hidden_bytes"] <= prompt["streamed_bytes"]
        assert prompt["streamed_bytes"] > 0
    assert done.returncode == (0 if report["ok"] else 1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("engine", "--only", "speed", "--json"), "--only speed: no such group"),
        (("engine", "--model", "dummy:huge", "--json"), "dummy:huge"),
        (("--setup-peers", "sglang", "--json"), "sglang: no such peer"),
        (("transfer", "--only", "raws", "--json"), "--only raws: no such group"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = moonpool(tmp_path, *arguments)
    assert done.returncode == 1
    assert expected in json.loads(done.stdout)["error"]["message"]


@pytest.mark.slow
def test_the_index_bench_measures_and_leaves_bars_of_absent_peers_open(tmp_path: Path) -> None:
    done = moonpool(tmp_path, "index", "--quick", "--json", "--only", "mirror", "--only", "nats")
    report = json.loads(done.stdout)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert bars["64 nodes: match full / Dynamo"]["value"] is None
    assert "--setup-peers dynamo" in bars["64 nodes: match full / Dynamo"]["note"]
    assert report["runs"]["64 nodes: moonpool full"]["median"] > 0
    assert bars["NATS: match p50, 1 in flight"]["value"] > 0
