"""Finds request traces: by path, or by name in the folder that MOONPOOL_TRACES names."""

import os
from pathlib import Path

from scripts.cli.output import CommandError
from shared.simulator.trace import TraceError, TraceRequest, read_trace

ENVIRONMENT = "MOONPOOL_TRACES"


def trace_path(name: str) -> Path:
    """`name` is a path, or the start of a file name such as `conversation`."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    folder = os.environ.get(ENVIRONMENT, "")
    for candidate in (f"{name}_trace.jsonl", f"{name}.jsonl", name):
        if folder and (Path(folder) / candidate).is_file():
            return Path(folder) / candidate
    raise CommandError(
        f"--trace: there is no trace {name!r}",
        hint=f"give the path of a JSONL file, or set {ENVIRONMENT} to a folder with "
        f"{Path(name).stem}_trace.jsonl (the Mooncake repository publishes traces)",
    )


def load_trace(name: str) -> list[TraceRequest]:
    try:
        return read_trace(trace_path(name))
    except (TraceError, OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--trace: {error}", hint="one JSON object a line") from None
