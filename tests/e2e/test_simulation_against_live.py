"""The simulator and the conductor's predictions against a live cluster whose times are known.

Workers take the times of a profile instead of computing; services, messages and transfers are real.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from shared.simulator.hardware import load_hardware
from tests.conftest import StartCluster
from tests.e2e.test_replay import command, replayed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PREFILL = {"base_s": 0.05, "linear_s": 4.0, "quadratic_s": 0.4}
"""Slow, so that what a busy test machine adds is small beside it."""
PROFILE: dict[str, Any] = {
    "name": "timed",
    "source": "chosen for this test",
    **{f"prefill_{name}": value for name, value in PREFILL.items()},
    "decode_step_s": 0.05,
    "decode_sequence_s": 0.004,
    "decode_context_s": 0.001,
    "kv_bytes_per_token": 1_024,
    "decode_capacity_tokens": 8_192,
    "link_bytes_per_s": 2e8,
    "link_base_s": 0.005,
    "host_to_device_bytes_per_s": 1e12,
}


def write_profiles(folder: Path) -> tuple[Path, Path]:
    """For workers and the simulator, and the same as a conductor reads it."""
    hardware, conductor = folder / "timed.json", folder / "timed.conductor.json"
    hardware.write_text(json.dumps(PROFILE))
    steps = {name: PROFILE[name] for name in ("decode_step_s", "decode_sequence_s")}
    conductor.write_text(json.dumps({"prefill": PREFILL, **steps}))
    return hardware, conductor


def write_trace(path: Path) -> None:
    """Poisson arrivals; half of the requests go on with a document that was read before."""
    rng = random.Random(7)
    documents: list[list[int]] = []
    lines, now_s, last_id = [], 0.0, 0
    for _ in range(24):
        now_s += rng.expovariate(0.35)
        goes_on = bool(documents) and rng.random() < 0.5
        ids = list(rng.choice(documents)) if goes_on else []
        for _ in range(rng.choice((1, 1, 2, 3))):
            last_id += 1
            ids.append(last_id)
        documents.append(ids)
        lines.append(
            {
                "timestamp": round(now_s * 1_000),
                "input_length": min(len(ids) * 512 + rng.randrange(1, 400), 3_500),
                "output_length": 6,
                "hash_ids": ids[:6],
            }
        )
    path.write_text("\n".join(json.dumps(line) for line in lines))


@pytest.mark.timeout(400)
def test_the_simulator_says_what_a_timed_cluster_does(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    hardware, conductor = write_profiles(tmp_path)
    assert load_hardware(str(hardware)).prefill_base_s == PREFILL["base_s"]
    write_trace(tmp_path / "t.jsonl")
    cluster = start_cluster(
        timed_by=str(hardware),
        extra_env={"conductor": {"MOONPOOL_PROFILE": str(conductor)}},
    )
    trace = str(tmp_path / "t.jsonl")
    # The first requests make connections and load what is loaded once.
    replayed(command(cluster, "replay", "--trace", trace, "--requests", "3", "--scale", "2"))
    shown = replayed(
        command(
            cluster, "replay", "--trace", trace, "--scale", "2",
            "--simulate", "--hardware", str(hardware), timeout_s=300,
        )
    )  # fmt: skip
    (run,) = shown["runs"]
    simulated = run["simulated"]
    assert (run["served"], run["failed"]) == (24, {})
    assert run["cached_tokens"] > 0
    assert simulated["cached_to_live"] == pytest.approx(1.0, abs=0.05)
    ratios = {name: simulated[name] for name in ("stages_to_live", "ttft_to_live")}
    if ratios == pytest.approx(dict.fromkeys(ratios, 1.0), abs=0.05):
        return
    # A machine that others use adds to every step; then the times say nothing of the simulator.
    machine = run["machine"]
    if not machine["is_steady"]:
        pytest.skip(f"the machine's speed moved by {machine['moved']:.0%}: {ratios} not measured")
    pytest.fail(f"simulated to live: {ratios}")
