"""Sends spans to an OpenTelemetry collector over OTLP/HTTP. Needs `moonpool[otel]`.

A thread sends them in batches from a bounded queue; when it is full, or nobody takes them, they
are dropped. OTEL_EXPORTER_OTLP_ENDPOINT turns it on; the other standard variables hold too.
"""

import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable

from shared.telemetry import tracing

log = logging.getLogger("moonpool.telemetry")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP = "http/protobuf"
LAST_WORDS_S = 2.0
"""For what is in the queue when the process ends."""


def is_wanted() -> bool:
    """Do the standard variables ask for traces?"""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(os.environ.get(name) for name in ENDPOINTS)


def start(service: str, process_id: str) -> Callable[[], None]:
    """Make and send spans, when the environment wants them; returns what ends it, in bounds."""
    if not is_wanted():
        return lambda: None
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), HTTP)
    if protocol != HTTP:
        log.warning("traces are off: %s is asked for, moonpool speaks %s", protocol, HTTP)
        return lambda: None
    try:
        from shared.telemetry.otel_spans import OtelSpans
    except ImportError as error:
        log.warning("traces are off: %s; pip install 'moonpool[otel]'", error)
        return lambda: None
    spans = OtelSpans(f"moonpool-{service}", process_id, importlib.metadata.version("moonpool"))
    tracing.use(spans)

    def end() -> None:
        tracing.use(None)
        # A collector that is away must not hold up the end of the process.
        thread = threading.Thread(target=spans.close, name="last spans", daemon=True)
        thread.start()
        thread.join(LAST_WORDS_S)

    return end
