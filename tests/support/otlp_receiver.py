"""A collector for tests: takes OTLP over HTTP, keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class Received:
    """One span as it came."""

    name: str
    service: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any] = field(hash=False)


class OtlpReceiver:
    """Spans in the order in which they came."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._spans: list[Received] = []
        self._lock = threading.Lock()

    def spans(self, trace_id: str) -> list[Received]:
        with self._lock:
            return [span for span in self._spans if span.trace_id == trace_id]

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        found = [
            _received(span, _attributes(group.resource.attributes))
            for group in message.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += found


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        service=resource["service.name"],
        process=resource["service.instance.id"],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == 2,
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receivers: list[OtlpReceiver] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raise AssertionError("nobody asked for gzip")
            receivers[0].take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receivers.append(OtlpReceiver(server.server_port))
        thread = threading.Thread(target=server.serve_forever, name="otlp receiver", daemon=True)
        thread.start()
        try:
            yield receivers[0]
        finally:
            server.shutdown()
            thread.join()
