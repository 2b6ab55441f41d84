"""Spans of OpenTelemetry's SDK behind our `SpanMaker`. Imports opentelemetry: an extra."""

import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind as OtelKind
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.telemetry.tracing import Attributes, Span, SpanKind, Value

_KINDS: dict[SpanKind, OtelKind] = {"server": OtelKind.SERVER, "internal": OtelKind.INTERNAL}
NAMESPACE = "moonpool"
_PROPAGATOR = TraceContextTextMapPropagator()


class _Span:
    def __init__(self, inner: OtelSpan) -> None:
        self._inner = inner
        context = inner.get_span_context()
        self.traceparent = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"
        )

    def set(self, attributes: Attributes) -> None:
        self._inner.set_attributes(_named(attributes))

    def end(self, error: str = "", at_s: float | None = None) -> None:
        if error:
            self._inner.set_status(Status(StatusCode.ERROR, error))
        self._inner.end(_wall_ns(at_s))


class OtelSpans:
    """Owns the SDK's provider and its exporting thread."""

    def __init__(self, service: str, process_id: str, version: str) -> None:
        resource = Resource.create(
            {
                "service.name": service,
                "service.instance.id": process_id,
                "service.version": version,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("moonpool", version)

    def start(
        self,
        name: str,
        parent: str,
        kind: SpanKind,
        attributes: Attributes,
        at_s: float | None = None,
    ) -> Span:
        context = _PROPAGATOR.extract({"traceparent": parent} if parent else {})
        inner = self._tracer.start_span(
            name,
            context,
            kind=_KINDS[kind],
            attributes=_named(attributes),
            start_time=_wall_ns(at_s),
        )
        return _Span(inner)

    def close(self) -> None:
        """Send what is left; may take as long as the exporter's time-out."""
        self._provider.shutdown()


def _named(attributes: Attributes) -> dict[str, Value]:
    return {
        name if "." in name else f"{NAMESPACE}.{name}": value for name, value in attributes.items()
    }


def _wall_ns(at_s: float | None) -> int | None:
    """The time of day that the collector shows; nothing is decided by it."""
    if at_s is None:
        return None
    return time.time_ns() - int((time.monotonic() - at_s) * 1e9)
