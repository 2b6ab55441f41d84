"""Finds request traces: by path, by name in the folder that MOONPOOL_TRACES names, or generated."""

import os
from pathlib import Path

from scripts.cli.output import CommandError
from shared.simulator.toolagent import ToolAgentSettings, make_toolagent
from shared.simulator.trace import TraceError, TraceRequest, read_trace
from shared.simulator.workload import WorkloadSettings, make_workload

ENVIRONMENT = "MOONPOOL_TRACES"
GENERATED, TOOLAGENT = "generated", "generated-toolagent"
TRACE_HELP = (
    f"A JSONL trace, its name in the folder {ENVIRONMENT}, `{GENERATED}` (sessions) or "
    f"`{TOOLAGENT}`."
)


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
        f"{Path(name).stem}_trace.jsonl (the Mooncake repository publishes traces); "
        f"`{GENERATED}` and `{TOOLAGENT}` need no file",
    )


def load_trace(name: str, seed: int = 0) -> list[TraceRequest]:
    """`seed`: of those that are generated."""
    if name == GENERATED:
        return make_workload(WorkloadSettings(seed=seed))
    if name == TOOLAGENT:
        return make_toolagent(ToolAgentSettings(seed=seed))
    try:
        return read_trace(trace_path(name))
    except (TraceError, OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--trace: {error}", hint="one JSON object a line") from None
