"""`moonpool index` on a cluster that has served something."""

import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.support.cluster import HostedCluster
from tests.support.deadline import wait_until
from tests.support.processes import nats_variables

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
MOONPOOL = [sys.executable, "-P", "-m", "scripts.cli.main"]
TEXT = "The index knows which node holds which block. " * 20


def index(cluster: HostedCluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    own = nats_variables(cluster.cluster.nats_access)
    done = subprocess.run(
        [*MOONPOOL, "index", *arguments, "--nats", cluster.nats_url, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {f"MOONPOOL_{name.upper()}": value for name, value in own.items()},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def served(dummy_cluster: HostedCluster) -> HostedCluster:
    """A prompt of several blocks was asked three times."""
    url = f"{dummy_cluster.base_url}/v1"
    model = httpx.get(f"{url}/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": TEXT, "max_tokens": 2}
    for _ in range(3):
        httpx.post(f"{url}/completions", json=body, timeout=60).raise_for_status()
    return dummy_cluster


def test_lookup_finds_the_prompt_that_was_served_and_no_other(served: HostedCluster) -> None:
    def found() -> dict[str, Any]:
        code, reply = index(served, "lookup", TEXT)
        assert (code == 0) == bool(reply["nodes"])
        return reply if reply["nodes"] else {}

    reply = wait_until(found, timeout_s=20, what="the prompt is in the index")
    assert reply["nodes"][0]["blocks"] == reply["blocks"] == len(TEXT) // 256
    code, other = index(served, "lookup", "Nobody asked this. " * 40)
    assert (code, other["nodes"]) == (1, [])


def test_all_places_agree_and_dumps_are_alike(served: HostedCluster) -> None:
    code, reply = index(served, "verify")
    assert code == 0, reply
    assert reply["ok"]
    node = max(reply["nodes"], key=lambda one: one["places"]["pool"]["blocks"])
    assert node["places"]["pool"]["blocks"] >= 3
    dumps = [index(served, "dump", node["node"], "--from", place)[1]["blocks"]
             for place in ("pool", "mirror", "redis")]  # fmt: skip
    assert dumps[0] == dumps[1] == dumps[2]
    assert len(dumps[0]) == node["places"]["pool"]["blocks"]


@pytest.mark.slow
def test_stats_count_and_hot_names_what_was_asked(served: HostedCluster) -> None:
    code, reply = index(served, "stats")
    assert code == 0
    assert all(one["is_redis_up"] and one["num_keys"] >= 3 for one in reply["indexes"])
    assert sum(one["matches_total"] for one in reply["indexes"]) >= 3
    code, reply = index(served, "hot", "-k", "3")
    assert code == 0
    hottest = reply["prefixes"][0]
    assert hottest["uses_per_s"] > 0
    assert hottest["nodes"]
    code, reply = index(served, "lookup", "--key", hottest["key"])
    assert (code, [one["node"] for one in reply["nodes"]]) == (0, hottest["nodes"])


def test_a_model_that_is_not_served_is_named(served: HostedCluster) -> None:
    code, reply = index(served, "lookup", "text", "--model", "other")
    assert code == 1
    assert "other is not served" in reply["error"]["message"]
