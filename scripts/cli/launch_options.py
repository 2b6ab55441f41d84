"""Options that `up` and `node` share: what workers are told, and how a run ends."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from scripts.cli.output import CommandError

DTYPES = ("float32", "bfloat16")
MODES = ("exact", "fast")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

DecodeTokensOption = Annotated[
    int,
    typer.Option(
        envvar="MOONPOOL_DECODE_TOKENS", min=1, help="Tokens of each decode worker's cache."
    ),
]
DtypeOption = Annotated[
    str | None, typer.Option(envvar="MOONPOOL_DTYPE", help="float32 or bfloat16.")
]
ModeOption = Annotated[str | None, typer.Option(envvar="MOONPOOL_MODE", help="exact or fast.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(envvar="MOONPOOL_THREADS", min=1, help="Threads of each worker; else shared out."),
]
DrainTimeoutOption = Annotated[
    float,
    typer.Option(
        envvar="MOONPOOL_DRAIN_TIMEOUT_S", min=0, help="For requests that run at the end."
    ),
]
LogLevelOption = Annotated[
    str, typer.Option(envvar="MOONPOOL_LOG_LEVEL", help=" ".join(LOG_LEVELS))
]
RunDirOption = Annotated[
    Path | None, typer.Option(help="Folder for logs and sockets; removed at the end.")
]
KeepLogsOption = Annotated[bool, typer.Option("--keep-logs", help="Keep them in any case.")]
JsonWhenReadyOption = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout when it is ready.")
]


def check_choices(*given: tuple[str, str | None, Collection[str]]) -> None:
    """CommandError for an option (its name, its value, what is allowed) that is none of these."""
    for option, value, allowed in given:
        if value is not None and value not in allowed:
            raise CommandError(f"{option} {value} is none of {', '.join(allowed)}")
