"""Spans and log lines without a cluster: who is whose child, and what off costs."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from shared.telemetry import about, otlp, tracing
from shared.telemetry.logs import JsonFormatter, SparseExporter, stamp
from shared.telemetry.tracing import NO_SPAN, Attributes, Span, SpanKind, Value

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


class Made:
    """A span that only remembers."""

    def __init__(self, number: int, name: str, parent: str, at_s: float | None) -> None:
        self.name, self.parent, self.at_s = name, parent, at_s
        self.traceparent = f"00-{'a' * 32}-{number:016x}-01"
        self.attributes: dict[str, Value] = {}
        self.ends: list[tuple[str, float | None]] = []

    def set(self, attributes: Attributes) -> None:
        self.attributes |= dict(attributes)

    def end(self, error: str = "", at_s: float | None = None) -> None:
        self.ends.append((error, at_s))


class Maker:
    def __init__(self) -> None:
        self.made: list[Made] = []

    def start(
        self,
        name: str,
        parent: str,
        kind: SpanKind,
        attributes: Attributes,
        at_s: float | None = None,
    ) -> Span:
        del kind
        span = Made(len(self.made) + 1, name, parent, at_s)
        span.set(attributes)
        self.made.append(span)
        return span


@pytest.fixture
def maker() -> Iterator[Maker]:
    made = Maker()
    tracing.use(made)
    try:
        yield made
    finally:
        tracing.use(None)


async def test_a_span_is_below_the_one_around_it(maker: Maker) -> None:
    about.work_for("r1", PARENT)
    with tracing.span("outer"), tracing.span("inner", attributes={"blocks": 3}):
        assert about.current().traceparent == maker.made[1].traceparent
    outer, inner = maker.made
    assert (outer.parent, inner.parent) == (PARENT, outer.traceparent)
    assert inner.attributes == {"request_id": "r1", "blocks": 3}
    assert (outer.ends, inner.ends) == ([("", None)], [("", None)])
    assert about.current() == about.About("r1", PARENT)


async def test_a_span_that_fails_says_why_and_the_error_goes_on(maker: Maker) -> None:
    about.work_for("r1", PARENT)
    with pytest.raises(ValueError, match="broken"), tracing.span("work"):
        raise ValueError("broken")
    assert maker.made[0].ends == [("broken", None)]
    assert about.current().traceparent == PARENT


async def test_work_for_no_request_has_no_span(maker: Maker) -> None:
    about.work_for("", "")
    with tracing.span("copy") as span:
        assert span is NO_SPAN
    tracing.past("queue", 1.0, 2.0, {})
    assert maker.made == []


async def test_past_work_has_its_own_times(maker: Maker) -> None:
    about.work_for("r1", PARENT)
    tracing.past("queue", 1.0, 2.5, {})
    tracing.past("compute", 3.0, 2.5, {})
    assert [(span.at_s, span.ends) for span in maker.made] == [
        (1.0, [("", 2.5)]),
        (3.0, [("", 3.0)]),
    ]


async def test_without_a_collector_the_parent_stays() -> None:
    about.work_for("r1", PARENT)
    assert tracing.begin("request", PARENT) is None
    with tracing.span("work") as span:
        assert span is NO_SPAN
        assert about.current().traceparent == PARENT


@pytest.mark.parametrize(
    ("variables", "is_wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_turn_it_on(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_wanted: bool
) -> None:
    for name in (*otlp.ENDPOINTS, *otlp.PROTOCOLS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert otlp.is_wanted() == is_wanted


def test_another_protocol_is_said_and_not_spoken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    otlp.start("gateway", "gateway-1")()
    assert "http/protobuf" in caplog.text
    assert not tracing.is_on()


def logged(stream: io.StringIO) -> dict[str, str]:
    """The one line."""
    return dict(json.loads(stream.getvalue()))


@pytest.fixture
def json_log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(stamp)
    handler.setFormatter(JsonFormatter({"service": "prefill", "id": "prefill-1"}))
    log = logging.getLogger("tests.json")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield log, stream
    finally:
        log.removeHandler(handler)


async def test_a_line_names_the_request_of_its_task(
    json_log: tuple[logging.Logger, io.StringIO],
) -> None:
    log, stream = json_log
    about.work_for("r1", PARENT)
    log.info("said %d", 3)
    line = logged(stream)
    assert line["request_id"] == "r1"
    assert line["trace_id"] == "a" * 32
    assert (line["level"], line["message"], line["id"]) == ("info", "said 3", "prefill-1")
    assert line["time"].endswith("Z")


async def test_a_line_about_another_request_names_that_one(
    json_log: tuple[logging.Logger, io.StringIO],
) -> None:
    log, stream = json_log
    about.work_for("r1", PARENT)
    log.info("its run did not come", extra=about.About("r2", "").extra)
    line = logged(stream)
    assert line["request_id"] == "r2"
    assert "trace_id" not in line


async def test_a_traceback_stays_on_one_line(
    json_log: tuple[logging.Logger, io.StringIO],
) -> None:
    log, stream = json_log
    about.work_for("", "")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("failed")
    assert stream.getvalue().count("\n") == 1
    line = logged(stream)
    assert "ValueError: two\nlines" in line["error"]
    assert "request_id" not in line


def test_a_collector_that_is_away_is_said_once_a_minute() -> None:
    sparse = SparseExporter()

    def passes(name: str, created: float) -> bool:
        record = logging.LogRecord(name, logging.ERROR, "", 0, "away", None, None)
        record.created = created
        return bool(sparse.filter(record))

    exporter = "opentelemetry.exporter.otlp"
    assert [passes(exporter, at) for at in (0.0, 1.0, 59.0, 60.5, 61.0)] == [
        True, False, False, True, False,
    ]  # fmt: skip
    assert passes("moonpool.gateway", 61.0)
