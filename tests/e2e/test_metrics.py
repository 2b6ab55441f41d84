"""Real scrapes of a running cluster: every declared metric, with the numbers of the bills."""

from collections.abc import Iterator

import httpx
import pytest

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.micro import MicroPing
from shared.telemetry import metrics
from shared.telemetry.metric import Metric
from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster
from tests.support.deadline import wait_until
from tests.support.raw_http import ask_raw
from tests.support.scraping import Scrape

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
GRID = 256
PROCESSES = (
    ("gateway", "gateway-1"),
    ("conductor", "conductor-1"),
    ("cache-index", "cache-index-1"),
    ("transfer", "node-1"),
    ("transfer", "node-2"),
    ("prefill", "prefill-1"),
    ("prefill", "prefill-2"),
    ("decode", "decode-1"),
    ("decode", "decode-2"),
)


@pytest.fixture(scope="module")
def urls(dummy_cluster: HostedCluster) -> dict[str, str]:
    """Where each process serves its metrics, by name, as the bus tells."""
    bus = dummy_cluster.cluster.bus
    asked = bus.gather(subjects.MICRO_PING, Empty(), MicroPing, within_s=2.0)
    return {found.name_of: found.metrics_url for found in dummy_cluster.call(asked)}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30, trust_env=False) as client:
        yield client


class Cluster:
    """Scrapes by process name."""

    def __init__(self, http: httpx.Client, urls: dict[str, str]) -> None:
        self._http = http
        self._urls = urls

    def scrape(self, name: str) -> Scrape:
        answer = self._http.get(self._urls[name])
        assert answer.status_code == 200, answer.text
        return Scrape(answer.text)

    def total(self, names: tuple[str, ...], metric: Metric, **labels: str) -> float:
        return sum(self.scrape(name).total(metric, **labels) for name in names)


@pytest.fixture(scope="module")
def cluster(http: httpx.Client, urls: dict[str, str]) -> Cluster:
    return Cluster(http, urls)


@pytest.fixture(scope="module")
def api(dummy_cluster: HostedCluster) -> Api:
    return Api(dummy_cluster.base_url, dummy_cluster.admin_key, DUMMY_MODEL)


def ended(cluster: Cluster, before: Scrape, count: int) -> Scrape | None:
    """The gateway's scrape once so many requests more have ended: just after their answer."""
    now = cluster.scrape("gateway-1")
    num_ended = now.total(metrics.REQUESTS) - before.total(metrics.REQUESTS)
    return now if num_ended == count and not now.value(metrics.IN_FLIGHT) else None


def prompt(number: int) -> list[int]:
    """Three chunks of the grid and a little, of its own for each test."""
    return [(number * 7_919 + 31 * at) % 500 for at in range(3 * GRID + 20)]


@pytest.mark.parametrize(("service", "name"), PROCESSES)
def test_every_declared_metric_is_in_the_scrape_of_its_service(
    cluster: Cluster, service: str, name: str
) -> None:
    scrape = cluster.scrape(name)
    for metric in metrics.of_services([service]):
        assert scrape.kinds.get(metric.name) == metric.kind, f"{metric.name} of {name}"
        assert scrape.labels_of(metric) <= set(metric.labels)
    assert scrape.total(metrics.BUILD_INFO, service=service, id=name) == 1
    assert scrape.value(metrics.BUS_CONNECTED) == 1
    for other in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert f"\n{other} " in scrape.text


def test_hits_bytes_and_times_are_those_of_the_bills(cluster: Cluster, api: Api) -> None:
    pools = ("node-1", "node-2")
    gateway = cluster.scrape("gateway-1")
    fetched = cluster.total(pools, metrics.TRANSFER_BYTES, purpose="request")
    streamed = cluster.total(pools, metrics.TRANSFER_BYTES, purpose="stream")
    computed = cluster.total(("prefill-1", "prefill-2"), metrics.PREFILL_TOKENS)
    tokens = prompt(900)
    bills = [
        api.complete(tokens, max_tokens=6, placement=on_nodes(prefill, decode))
        for prefill, decode in ((1, 1), (1, 1), (2, 2), (2, 1))
    ]
    now = wait_until(lambda: ended(cluster, gateway, 4), what="four requests have ended")

    def gained(metric: Metric, **labels: str) -> float:
        return now.total(metric, **labels) - gateway.total(metric, **labels)

    assert [one.cached_from for one in bills] == ["none", "local", "remote", "local"]
    assert gained(metrics.PREFIX_HITS, source="local", tier="dram") == 2 * 3 * GRID
    assert gained(metrics.PREFIX_HITS, source="remote", tier="dram") == 3 * GRID
    assert gained(metrics.PREFIX_QUERIES) == 4 * len(tokens)
    assert gained(metrics.PROMPT_TOKENS) == 4 * len(tokens)
    assert gained(metrics.GENERATION_TOKENS) == 4 * 6
    assert gained(metrics.REQUESTS, outcome="length") == 4
    model = {"model": DUMMY_MODEL}
    ttft_s = now.sum(metrics.TTFT, **model) - gateway.sum(metrics.TTFT, **model)
    assert ttft_s == pytest.approx(sum(one.served["ttft_s"] for one in bills))
    intervals = now.count(metrics.ITL, **model) - gateway.count(metrics.ITL, **model)
    assert intervals == 4 * 5
    assert cluster.total(pools, metrics.TRANSFER_BYTES, purpose="request") - fetched == sum(
        one.served["fetched_bytes"] for one in bills
    )
    assert cluster.total(pools, metrics.TRANSFER_BYTES, purpose="stream") - streamed == sum(
        one.served["streamed_bytes"] for one in bills
    )
    assert (
        cluster.total(("prefill-1", "prefill-2"), metrics.PREFILL_TOKENS) - computed
        == 4 * len(tokens) - 3 * 3 * GRID
    )


def test_a_refusal_is_counted_by_its_reason(cluster: Cluster, api: Api, http: httpx.Client) -> None:
    before, placed = cluster.scrape("gateway-1"), cluster.scrape("conductor-1")
    body = {"model": DUMMY_MODEL, "prompt": prompt(901), "max_tokens": 2, "ttft_slo_ms": 1e-3}
    assert http.post(f"{api.base_url}/v1/completions", json=body).status_code == 429
    bad = http.post(f"{api.base_url}/v1/completions", json={"model": "?"})
    assert bad.status_code == 400
    assert http.get(f"{api.base_url}/nothing/here").status_code == 404
    after = wait_until(lambda: ended(cluster, before, 1), what="the refused one has ended")
    then = cluster.scrape("conductor-1")
    path = "/v1/completions"
    for route, status, count in ((path, "429", 1), (path, "400", 1), ("other", "404", 1)):
        gained = after.value(metrics.HTTP_RESPONSES, route=route, status=status) - before.value(
            metrics.HTTP_RESPONSES, route=route, status=status
        )
        assert gained == count, (route, status)
    for reason in ("overloaded", bad.json()["error"]["code"]):
        gained = after.value(metrics.REFUSALS, reason=reason)
        assert gained == before.value(metrics.REFUSALS, reason=reason) + 1, reason
    assert then.value(metrics.PLACEMENT_REFUSALS, reason="overloaded") == (
        placed.value(metrics.PLACEMENT_REFUSALS, reason="overloaded") + 1
    )


def test_gauges_show_the_state_that_reports_show(cluster: Cluster, api: Api) -> None:
    api.complete(prompt(902), max_tokens=2, placement=on_nodes(1, 1))
    assert cluster.scrape("cache-index-1").value(metrics.INDEX_REDIS_UP) == 1
    assert cluster.scrape("node-1").value(metrics.ATTACHED, role="prefill") == 1

    def is_idle() -> bool:
        node = cluster.scrape("node-1")
        slots = [node.value(metrics.POOL_SLOTS, state=state) for state in ("free", "sealed")]
        return slots[1] >= 3 and sum(slots) == node.total(metrics.POOL_SLOTS)

    wait_until(is_idle, what="all slots are free or sealed again")

    def knows_all() -> bool:
        conductor = cluster.scrape("conductor-1")
        return conductor.total(metrics.KNOWN_PROCESSES, state="ready") == 7

    wait_until(knows_all, what="the conductor hears seven processes")


def test_the_gateway_serves_metrics_on_its_own_port_too(
    http: httpx.Client, dummy_cluster: HostedCluster
) -> None:
    answer = http.get(f"{dummy_cluster.base_url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert Scrape(answer.text).total(metrics.BUILD_INFO, id="gateway-1") == 1


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405 Method Not Allowed"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200 OK"),
    ],
)
def test_the_listener_answers_scrapers_only(
    urls: dict[str, str], question: bytes, status: bytes
) -> None:
    answer = ask_raw(urls["node-1"], question)
    assert answer.startswith(b"HTTP/1.1 " + status)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert bool(body) == (b"HEAD" not in question)
    assert b"Connection: close" in head


def test_the_listener_survives_what_is_no_http(urls: dict[str, str], cluster: Cluster) -> None:
    assert ask_raw(urls["node-1"], b"\x00" * 40_000) == b""
    assert ask_raw(urls["node-1"], b"\xff\xfe\r\n\r\n").startswith(b"HTTP/1.1 405")
    assert cluster.scrape("node-1").value(metrics.BUS_CONNECTED) == 1
