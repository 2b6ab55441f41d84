"""`moonpool doctor` beside a cluster: its NATS, its Redis; and servers that are not there."""

import pytest

from tests.conftest import StartCluster
from tests.support.cluster import HostedCluster
from tests.support.command_line import command
from tests.support.deadline import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def looked(cluster: HostedCluster) -> dict[str, str]:
    """What it found, and below `problem NAME` what it wants done."""
    checks = command(cluster, "doctor", is_sure=False)["checks"]
    found = {check["name"]: check["found"] for check in checks}
    return found | {f"problem {one['name']}": one["problem"] for one in checks if one["problem"]}


def test_it_looks_at_nats_redis_and_the_model(
    dummy_cluster: HostedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONPOOL_MODEL", "dummy:tiny")
    said = looked(dummy_cluster)
    assert f"{dummy_cluster.nats_url}: " in said["NATS"]
    assert "1 server, round trip" in said["NATS"]
    assert "messages of 8 MB" in said["NATS"]
    assert said["Redis"] == "reached by cache-index-1"
    assert said["model"].startswith("dummy:tiny: llama, ")
    assert not [name for name in said if name.startswith("problem")]


def test_a_redis_that_is_away_is_a_problem(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1)
    cluster.stop("redis")
    wait_until(lambda: "problem Redis" in looked(cluster), timeout_s=30, what="it is missed")
    assert "1 of 1 cache-indexes cannot reach it" in looked(cluster)["Redis"]
    cluster.start_again("redis")
    wait_until(lambda: "problem Redis" not in looked(cluster), timeout_s=30, what="it is back")
