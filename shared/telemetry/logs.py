"""Log lines as text or as one JSON object each, with the ids of the request they are about."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from shared.telemetry.about import current

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname).1s %(name)s %(message)s"
SPARSE = "opentelemetry"
SPARSE_S = 60.0


def set_up(level: str, log_format: LogFormat, labels: Mapping[str, str]) -> None:
    """All loggers of the process to stderr. `labels` stand on every line of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(SparseExporter())
    if log_format == "json":
        handler.addFilter(stamp)
        handler.setFormatter(JsonFormatter(labels))
    else:
        handler.setFormatter(logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("urllib3").setLevel(logging.WARNING)


def stamp(record: logging.LogRecord) -> bool:
    """Adds request and trace of the task that logs; a line that names its own keeps them."""
    about = current()
    record.request_id = getattr(record, "request_id", about.request_id)
    record.trace_id = getattr(record, "trace_id", about.trace_id)
    return True


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, the labels, then what is known of
    request_id, trace_id and error (the traceback)."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = dict(labels)

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, str] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._labels,
        }
        for name in ("request_id", "trace_id"):
            value = getattr(record, name, "")
            if value:
                line[name] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class SparseExporter(logging.Filter):
    """A collector that is away is worth a line a minute, not one for each try."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(SPARSE):
            return True
        if record.levelno < logging.WARNING or record.created - self._said_s < SPARSE_S:
            return False
        self._said_s = record.created
        return True
