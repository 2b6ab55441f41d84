"""No decision is made by the time of day: it jumps, and it differs between machines."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIME_OF_DAY = {
    ("time", name)
    for name in ("time", "time_ns", "localtime", "gmtime", "clock_gettime", "clock_gettime_ns")
} | {(kind, name) for kind in ("datetime", "date") for name in ("now", "utcnow", "today")}

# Dates that a person or a model reads, and the times of spans that a collector shows.
FOR_READERS = {
    "services/gateway/openai_responses.py",
    "shared/checkpoint/chat_template.py",
    "shared/telemetry/otel_spans.py",
}


def uses_in(source: str) -> list[str]:
    """Line and name of each."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in TIME_OF_DAY:
                found.append(f"{node.lineno}: {node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = [one.name for one in node.names if ("time", one.name) in TIME_OF_DAY]
            found += [f"{node.lineno}: from time {one}" for one in names]
    return found


def test_services_and_what_they_share_read_the_monotonic_clock_alone() -> None:
    paths = [path for name in ("services", "shared") for path in (ROOT / name).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): uses_in(path.read_text()) for path in paths}
    assert {path for path, used in found.items() if used} == FOR_READERS


def test_a_use_would_be_seen() -> None:
    assert uses_in("import time\nx = time.time()\n") == ["2: time.time"]
    assert uses_in("from time import time_ns\n") == ["1: from time time_ns"]
    assert uses_in("from time import monotonic\n") == []
