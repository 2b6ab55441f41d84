"""One id through everything: spans of a request form one tree, JSON lines name it everywhere."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options
from tests.support.deadline import wait_until
from tests.support.otlp_receiver import OtlpReceiver, Received, otlp_receiver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
GRID = 256
SERVICES = ("gateway", "conductor", "cache_index", "transfer", "prefill", "decode")


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced(collector: OtlpReceiver) -> Iterator[HostedCluster]:
    """A cluster that sends traces and logs JSON at DEBUG: more lines, more to be wrong."""
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "MOONPOOL_LOG_FORMAT": "json",
    }
    extra = dict.fromkeys(SERVICES, settings)
    with HostedCluster(dummy_options(extra_env=extra, log_level="DEBUG")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def api(traced: HostedCluster) -> Api:
    return Api(traced.base_url, traced.admin_key, DUMMY_MODEL)


def prompt(number: int) -> list[int]:
    return [(number * 7_919 + 29 * at) % 500 for at in range(3 * GRID + 20)]


def ask(api: Api, traceparent: str, **fields: Any) -> dict[str, Any]:
    """A completion within the client's trace; its bill."""
    response = httpx.post(
        f"{api.base_url}/v1/completions",
        json=api.body(prompt(fields.pop("number")), max_tokens=4, **fields),
        headers={**api.headers, "traceparent": traceparent, "x-request-id": "mine"},
        timeout=60,
        trust_env=False,
    )
    assert response.status_code == 200, response.text
    return dict(response.json()["moonpool"])


def new_trace() -> tuple[str, str, str]:
    """A sampled traceparent, its trace id and its span id."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return f"00-{trace}-{span}-01", trace, span


def finished(
    collector: OtlpReceiver, trace: str, client_span: str, names: set[str]
) -> list[Received]:
    """The spans of a trace, once these and every parent have come: parents end last."""

    def spans() -> list[Received]:
        found = collector.spans(trace)
        known = {client_span, *(span.span_id for span in found)}
        is_whole = all(span.parent_id in known for span in found)
        return found if is_whole and names <= {span.name for span in found} else []

    return wait_until(spans, timeout_s=30, what=f"spans {names}")


def test_spans_of_a_request_form_one_tree_over_all_services(
    api: Api, collector: OtlpReceiver
) -> None:
    api.complete(prompt(1), max_tokens=2, placement=on_nodes(1, 1))
    traceparent, trace, client_span = new_trace()
    bill = ask(api, traceparent, number=1, placement=on_nodes(2, 1))
    assert bill["cached_from"] == "remote"
    wanted = {"request", "place", "match", "prefill", "load", "queue", "compute", "handoff"}
    wanted |= {"decode", "intake", "generate", "fetch", "lease", "pull"}
    spans = finished(collector, trace, client_span, wanted)
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    (root,) = [span for span in spans if span.parent_id == client_span]
    assert (root.name, root.service) == ("request", "moonpool-gateway")
    for span in spans:
        assert span is root or span.parent_id in by_id, f"{span.name} has no parent here"
        assert not span.is_error, span
        assert span.end_ns >= span.start_ns
        assert span.attributes["moonpool.request_id"] == bill["request_id"]
    assert {span.service.removeprefix("moonpool-") for span in spans} == {
        "gateway", "conductor", "cache-index", "transfer", "prefill", "decode",
    }  # fmt: skip
    above = {(span.name, by_id[span.parent_id].name) for span in spans if span is not root}
    for pair in (
        ("place", "request"), ("match", "place"), ("prefill", "request"), ("decode", "request"),
        ("load", "prefill"), ("queue", "prefill"), ("compute", "prefill"), ("handoff", "prefill"),
        ("fetch", "load"), ("lease", "fetch"), ("intake", "decode"), ("pull", "intake"),
        ("generate", "decode"),
    ):  # fmt: skip
        assert pair in above, f"{pair} of {sorted(above)}"
    fetch = next(span for span in spans if span.name == "fetch" and span.process == "node-2")
    assert fetch.attributes["moonpool.bytes"] == bill["fetched_bytes"] > 0
    assert fetch.attributes["moonpool.peer"] == "node-1"
    assert root.attributes["moonpool.cached_tokens"] == bill["cached_tokens"] == 3 * GRID
    assert root.attributes["moonpool.client_request_id"] == "mine"
    assert root.attributes["gen_ai.usage.input_tokens"] == len(prompt(1))
    assert root.attributes["gen_ai.usage.output_tokens"] == 4


def test_a_request_that_the_client_does_not_sample_has_no_spans(
    api: Api, collector: OtlpReceiver
) -> None:
    traceparent, trace, _ = new_trace()
    ask(api, traceparent[:-2] + "00", number=2)
    sampled, other, client_span = new_trace()
    ask(api, sampled, number=3)
    finished(collector, other, client_span, {"request", "prefill", "decode", "place"})
    assert collector.spans(trace) == []


def test_a_refused_request_is_a_span_with_an_error(api: Api, collector: OtlpReceiver) -> None:
    traceparent, trace, client_span = new_trace()
    response = httpx.post(
        f"{api.base_url}/v1/completions",
        json={**api.body(prompt(4)), "ttft_slo_ms": 1e-3},
        headers={"traceparent": traceparent},
        timeout=60,
        trust_env=False,
    )
    assert response.status_code == 429
    found = finished(collector, trace, client_span, {"request", "place"})
    spans = {span.name: span for span in found}
    assert spans["request"].is_error
    assert spans["request"].attributes["moonpool.outcome"] == "overloaded"
    assert spans["place"].attributes["moonpool.refusal"] == "overloaded"


def test_every_line_is_json_and_those_of_a_request_name_it_in_each_service(
    api: Api, traced: HostedCluster
) -> None:
    api.complete(prompt(5), max_tokens=2, placement=on_nodes(1, 1))
    traceparent, trace, _ = new_trace()
    bill = ask(api, traceparent, number=5, placement=on_nodes(2, 1))

    def lines() -> list[dict[str, str]]:
        ours = [
            (name, line) for name, line in list(traced.lines) if name in traced.cluster.names.all
        ]
        parsed = [json.loads(line) for _, line in ours if line.startswith("{")]
        return [line for line in parsed if line.get("request_id") == bill["request_id"]]

    def said_everywhere() -> bool:
        found = {line["service"] for line in lines()}
        return found >= {"gateway", "conductor", "cache-index", "transfer", "prefill", "decode"}

    wait_until(said_everywhere, timeout_s=30, what="a line of every service")
    for line in lines():
        assert line["trace_id"] == trace, line
        assert set(line) >= {"time", "level", "logger", "message", "service", "id"}
    (served,) = [line for line in lines() if line["logger"] == "moonpool.gateway"]
    assert served["message"].startswith(f"request {bill['request_id']} trace {trace}: length")
