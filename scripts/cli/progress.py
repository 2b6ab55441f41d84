"""How a starting and running cluster looks in the terminal: one living line, logs above it."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from scripts.launcher.processes import Exit
from scripts.launcher.readiness import Readiness
from scripts.launcher.supervisor import BAD_SETTINGS_CODE

COLOURS = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_green",
    "bright_red",
)


class ClusterView:
    """Shows who is waited for until `finish`, and the output of processes all the time."""

    def __init__(self, console: Console, *, title: str, is_showing_logs: bool = True) -> None:
        self._console = console
        self._title = title
        self._is_showing_logs = is_showing_logs
        self._status = Status(title, console=console)
        self._colours: dict[str, str] = {}
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        else:
            self._console.print(self._title)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """No living line from now on."""
        self._status.stop()

    def on_progress(self, seen: Readiness) -> None:
        fresh = [name for name in seen.ready if name not in self._seen]
        self._seen.update(fresh)
        waiting = ", ".join(seen.waiting)
        self._status.update(f"{self._title}: waiting for {waiting}" if waiting else self._title)
        if fresh and not self._console.is_terminal:
            self._console.print(f"ready: {', '.join(fresh)}")

    def on_line(self, name: str, line: str) -> None:
        """One line of a process, after its name in its colour."""
        if self._is_showing_logs:
            self._print(name, line)

    def on_death(self, end: Exit) -> None:
        """Who died and why; its last lines when they were not shown already."""
        what_now = "" if end.code == BAD_SETTINGS_CODE else ", starting it again"
        self._console.print(Text(f"{end.sentence}{what_now}", style="bold red"))
        if not self._is_showing_logs:
            for line in end.tail[-4:]:
                self._print(end.name, line)

    def _print(self, name: str, line: str) -> None:
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        text = Text(f"{name:<13}| ", style=colour)
        text.append(line, style="default")
        self._console.print(text, soft_wrap=True)
