"""`moonpool doctor` and `status` beside a cluster: what is there, and what was taken away."""

import re
from collections.abc import Iterator

import pytest

from tests.support.cluster import HostedCluster, dummy_options
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
    found = re.search(r"(\d+) nodes here", said["shared memory"])
    assert found is not None
    assert int(found[1]) >= 2
    assert not [name for name in said if name.startswith("problem")]


@pytest.fixture(scope="module")
def broken() -> Iterator[HostedCluster]:
    """One node, of which tests take something away and give it back."""
    with HostedCluster(dummy_options(nodes=1)) as cluster:
        yield cluster


def test_a_redis_that_is_away_is_a_problem(broken: HostedCluster) -> None:
    broken.stop("redis")
    wait_until(lambda: "problem Redis" in looked(broken), timeout_s=30, what="it is missed")
    assert "1 of 1 cache-indexes cannot reach it" in looked(broken)["Redis"]
    assert problems_of_status(broken) == ["cache-index-1 cannot reach Redis"]
    broken.start_again("redis")
    wait_until(lambda: "problem Redis" not in looked(broken), timeout_s=30, what="it is back")
    wait_until(lambda: not problems_of_status(broken), timeout_s=30, what="all is well")


def test_the_exit_code_of_status_says_that_a_service_is_missing(broken: HostedCluster) -> None:
    broken.stop("decode-1")
    wait_until(
        lambda: problems_of_status(broken) == ["no decode answers"],
        timeout_s=30,
        what="it is missed, and nothing else",
    )
    broken.start_again("decode-1")
    wait_until(lambda: not problems_of_status(broken), timeout_s=60, what="all is well")


def problems_of_status(cluster: HostedCluster) -> list[str]:
    """Its exit code says whether there are any."""
    said = command(cluster, "status", is_sure=False)
    assert said["ok"] == (not said["problems"])
    problems: list[str] = said["problems"]
    return problems
