"""A real Prometheus beside a cluster: it scrapes all, our rules and dashboards have answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options
from tests.support.command_line import command
from tests.support.deadline import wait_until
from tests.support.prometheus import Prometheus, dashboard_queries

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]
MAY_BE_EMPTY = {"Transfer failures a second: 0"}
"""By reason, and nothing failed."""
ROLES = {"gateway", "conductor", "cache-index", "transfer", "prefill", "decode"}


@dataclass(frozen=True, slots=True)
class Watched:
    cluster: HostedCluster
    prometheus: Prometheus
    addresses: dict[str, str]
    """The service at each address that is scraped."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    ssd = {"MOONPOOL_SSD_DIR": str(tmp_path_factory.mktemp("ssd"))}
    with HostedCluster(dummy_options(extra_env={"transfer": ssd})) as cluster:
        services = command(cluster, "status", is_sure=False)["services"]
        addresses = {urlsplit(one["metrics"]).netloc: one["service"] for one in services}
        with Prometheus(tmp_path_factory.mktemp("prometheus"), addresses) as prometheus:
            yield Watched(cluster, prometheus, addresses)


def serve(cluster: HostedCluster) -> None:
    """A cold run, a local hit and a remote one; a target that is met and one that cannot be."""
    api = Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)
    for target_ms, status in (("60000", 200), ("0.01", 429)):
        answer = httpx.post(
            f"{api.base_url}/v1/completions",
            json=api.body([5] * 20, max_tokens=8),
            headers=api.headers | {"x-moonpool-ttft-slo-ms": target_ms},
            timeout=60,
            trust_env=False,
        )
        assert answer.status_code == status, answer.text
    prompt = [7 * number % 400 + 3 for number in range(1_100)]
    api.complete(prompt, max_tokens=8, placement=on_nodes(1, 1))
    api.complete([*prompt, 5], max_tokens=8, placement=on_nodes(1, 1))
    api.complete([*prompt, 6], max_tokens=8, placement=on_nodes(2, 2))


def test_every_process_is_scraped(watched: Watched) -> None:
    def up() -> dict[str, str]:
        series = watched.prometheus.ask("up == 1")
        return {one["metric"]["instance"]: one["metric"]["service_name"] for one in series}

    wait_until(lambda: up() == watched.addresses, timeout_s=30, what="all are scraped")
    assert set(watched.addresses.values()) == ROLES
    builds = watched.prometheus.ask("moonpool_build_info")
    assert {one["metric"]["service"] for one in builds} == ROLES


def test_every_panel_has_an_answer_once_requests_were_served(watched: Watched) -> None:
    queries, answered = dashboard_queries(), set[str]()

    def are_all_answered() -> bool:
        serve(watched.cluster)
        answered.update(name for name, query in queries.items() if watched.prometheus.ask(query))
        return answered >= queries.keys() - MAY_BE_EMPTY

    try:
        wait_until(are_all_answered, timeout_s=60, what="every panel has an answer")
    except AssertionError:
        raise AssertionError(f"without one: {queries.keys() - answered}") from None


def test_rules_are_evaluated_and_nothing_is_wrong_with_a_healthy_cluster(watched: Watched) -> None:
    def evaluated() -> bool:
        rules = watched.prometheus.rules()
        return bool(rules) and all(rule["lastEvaluation"][:4] > "0001" for rule in rules)

    wait_until(evaluated, timeout_s=30, what="all rules are evaluated")
    rules = watched.prometheus.rules()
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_a_process_that_is_gone_is_seen(watched: Watched) -> None:
    watched.cluster.stop("prefill-2")
    try:
        wait_until(
            lambda: len(watched.prometheus.ask("up == 0")) == 1, timeout_s=30, what="it is missed"
        )
        pending = [
            rule["name"] for rule in watched.prometheus.rules() if rule.get("state") == "pending"
        ]
        wait_until(
            lambda: (
                "MoonpoolProcessDown"
                in [r["name"] for r in watched.prometheus.rules() if r.get("state") != "inactive"]
            ),
            timeout_s=30,
            what=f"the alert begins ({pending})",
        )
    finally:
        watched.cluster.start_again("prefill-2")
