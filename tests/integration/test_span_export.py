"""Spans over real OTLP/HTTP: what arrives, and what a collector that is away does not disturb."""

import socket

import pytest

from shared.telemetry import about, otlp, tracing
from tests.support.deadline import wait_until
from tests.support.otlp_receiver import otlp_receiver

CLIENT = "00-" + "c" * 32 + "-" + "d" * 16 + "-01"
NUM_SPANS = 5_000
"""More than the exporter's queue holds."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*otlp.ENDPOINTS, *otlp.PROTOCOLS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_spans_arrive_with_parents_times_and_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        end = otlp.start("gateway", "gateway-7")
        try:
            root = tracing.begin("request", CLIENT)
            assert root is not None
            about.work_for("r1", root.traceparent)
            with tracing.span("place", attributes={"blocks": 3, "gen_ai.request.model": "m"}):
                tracing.past("queue", 10.0, 12.5, {})
            root.end("refused")
        finally:
            end()
        assert not tracing.is_on()
        found = {span.name: span for span in collector.spans("c" * 32)}
    assert set(found) == {"request", "place", "queue"}
    assert found["request"].parent_id == "d" * 16
    assert found["request"].is_error
    assert found["place"].parent_id == found["request"].span_id
    assert found["place"].attributes == {
        "moonpool.request_id": "r1",
        "moonpool.blocks": 3,
        "gen_ai.request.model": "m",
    }
    queue = found["queue"]
    assert queue.parent_id == found["place"].span_id
    assert (queue.end_ns - queue.start_ns) / 1e9 == pytest.approx(2.5, abs=0.01)
    assert (queue.service, queue.process) == ("moonpool-gateway", "gateway-7")


async def test_a_request_without_a_trace_begins_one_that_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        end = otlp.start("gateway", "gateway-7")
        try:
            made = [tracing.begin("request", header) for header in ("", "no traceparent")]
            traces = [one.traceparent for one in made if one is not None]
            for one in made:
                assert one is not None
                one.end()
            for traceparent in traces:
                assert traceparent.endswith("-01")
                trace = traceparent.split("-")[1]
                wait_until(lambda trace=trace: collector.spans(trace), what="its span")
        finally:
            end()


async def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    end = otlp.start("gateway", "gateway-7")
    try:
        about.work_for("r1", CLIENT)
        for _ in range(NUM_SPANS):
            with tracing.span("work"):
                pass
        assert about.current().traceparent == CLIENT
    finally:
        end()
    assert not tracing.is_on()
