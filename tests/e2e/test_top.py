"""`moonpool top` as a user runs it: in a terminal, once, and as JSON."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.cluster import DUMMY_MODEL, HostedCluster
from tests.support.deadline import wait_until
from tests.support.processes import nats_variables
from tests.support.servers import TestServer
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
TOP = [sys.executable, "-P", "-m", "scripts.cli.main", "top"]


def environment(cluster: HostedCluster) -> dict[str, str]:
    own = nats_variables(cluster.cluster.nats_access)
    return os.environ | {f"MOONPOOL_{name.upper()}": value for name, value in own.items()}


@pytest.fixture(scope="module")
def served(dummy_cluster: HostedCluster) -> HostedCluster:
    api = Api(dummy_cluster.base_url, dummy_cluster.admin_key, DUMMY_MODEL)
    api.complete([5] * 300, max_tokens=3)
    return dummy_cluster


def run(cluster: HostedCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, "--nats", cluster.nats_url, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(cluster) | {"COLUMNS": "80"},
    )


def test_one_look_has_everybody_and_the_last_requests(served: HostedCluster) -> None:
    done = run(served, "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "healthy" in lines[0]
    assert max(len(line) for line in lines) <= 80
    for name in ("node-2", "prefill-1", "decode-2", "REQUEST"):
        assert name in done.stdout


def look_at(cluster: HostedCluster) -> dict[str, Any]:
    done = run(cluster, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    look: dict[str, Any] = json.loads(done.stdout)
    return look


def test_json_is_the_dashboards_model(served: HostedCluster) -> None:
    # A gateway that is too busy to answer in time is left out of a look.
    look = wait_until(
        lambda: look if (look := look_at(served))["requests"] else None,
        timeout_s=60,
        what="a look has requests",
    )
    assert look is not None
    assert look["ok"]
    assert {one["id"] for one in look["nodes"]} == {"node-1", "node-2"}
    assert look["requests"][-1]["ending"] in ("finished", "refused", "failed", "cancelled")
    assert look["summary"]["asked"] >= 1


def test_without_a_terminal_it_says_what_to_do(served: HostedCluster) -> None:
    done = run(served)
    assert done.returncode == 1
    assert "--once" in done.stderr


def test_keys_sort_pause_and_end_and_the_terminal_is_as_before(served: HostedCluster) -> None:
    command = [*TOP, "--nats", served.nats_url]
    with Terminal(command, environment(served)) as terminal:
        terminal.wait_for("REQUEST")
        at = terminal.wait_for("s sort (newest)")
        terminal.press("s")
        at = terminal.wait_for("s sort (ttft)", since=at)
        terminal.press("p")
        terminal.wait_for("PAUSED", since=at)
        terminal.press("q")
        assert terminal.wait_end() == 0
        assert terminal.modes == terminal.before


def test_a_lost_nats_is_said_in_one_line_and_it_goes_on_when_it_is_back(
    own_nats: TestServer,
) -> None:
    with Terminal([*TOP, "--nats", own_nats.url], os.environ) as terminal:
        at = terminal.wait_for("no conductor is there")
        own_nats.stop()
        at = terminal.wait_for("cut off from NATS: what is shown is old", since=at)
        own_nats.start()
        terminal.wait_for("no conductor is there", since=at)
        terminal.press("q")
        assert terminal.wait_end() == 0
