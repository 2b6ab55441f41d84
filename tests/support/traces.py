"""Public request traces for tests that need them; skipped where they are absent."""

import functools
import os
from pathlib import Path

import pytest

from shared.simulator.trace import TraceRequest, read_trace


@functools.cache
def public_trace(name: str) -> list[TraceRequest]:
    folder = os.environ.get("MOONPOOL_TRACES", "")
    path = Path(folder) / f"{name}_trace.jsonl"
    if not folder or not path.is_file():
        pytest.skip(f"needs {path.name} in the folder that MOONPOOL_TRACES names")
    return read_trace(path)
