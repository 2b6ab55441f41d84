"""What commands say: people read stderr and tables, programs read one JSON object on stdout."""

import json
import sys
from typing import Any

from rich.console import Console

console = Console(stderr=True, highlight=False)


class CommandError(Exception):
    """A command cannot do what it was asked; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def print_json(value: dict[str, Any]) -> None:
    """The one JSON object of a command; `ok` says what its exit code says."""
    sys.stdout.write(json.dumps({"ok": True} | value) + "\n")
    sys.stdout.flush()


def report_error(message: str, hint: str, *, as_json: bool) -> None:
    # Not wrapped: paths and commands in it must survive a copy.
    console.print(f"[bold red]error:[/] {_plain(message)}", soft_wrap=True)
    if hint:
        console.print(f"[bold]try:[/] {_plain(hint)}", soft_wrap=True)
    if as_json:
        print_json({"ok": False, "error": {"message": message, "hint": hint}})


def _plain(text: str) -> str:
    """Text of others: square brackets in it are no markup."""
    return text.replace("[", "\\[")
