"""One question of a command to its cluster; what goes wrong is said clearly."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from scripts.cli.output import CommandError
from scripts.cli.target import find_target, need_target
from shared.messages.common import ErrorCode
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

T = TypeVar("T")
NatsOption = Annotated[
    str | None, typer.Option(help="NATS of the cluster; else the one that runs here.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it is meant.")]
LOOK_HINT = "`moonpool status` shows what runs"


def on_bus(name: str, nats: str | None, ask: Callable[[Bus], Awaitable[T]]) -> T:
    """What `ask` finds out. Raises CommandError for what the cluster refuses."""
    target = need_target(find_target(nats=nats))

    async def run() -> T:
        bus = await target.connect(name)
        try:
            return await ask(bus)
        except ServiceError as error:
            raise CommandError(error.message, hint=_hint_of(error)) from None
        finally:
            await bus.close()

    return asyncio.run(run())


def _hint_of(error: ServiceError) -> str:
    if error.code in (ErrorCode.OVERLOADED, ErrorCode.DRAINING) or error.info.is_retryable:
        return f"try again later; {LOOK_HINT}"
    return LOOK_HINT


def confirm(question: str, *, is_yes: bool, as_json: bool) -> None:
    """Ask the user on the terminal; CommandError without a yes, or when nobody can be asked."""
    if is_yes:
        return
    if as_json or not sys.stdin.isatty():
        raise CommandError(
            f"not done: {question} nobody can be asked here", hint="--yes says that it is meant"
        )
    if not typer.confirm(question, err=True):
        raise CommandError("not done", hint="nothing was changed")
