"""One child process: starts it, pumps its output by lines, tells how it ended.

A child has a session of its own (Ctrl-C in the terminal reaches the launcher alone) and dies with
the thread that started it. It never decides whether to start again: see `supervisor`.
"""

import asyncio
import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
TAIL_LINES = 12
PIPE_GRACE_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)

OnLine = Callable[[str, str], None]
"""Called with the name of the process and one line of its output."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run, under which name."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_quiet: bool = False
    """Output goes to the log file only, not to `on_line`."""
    fds: tuple[int, ...] = ()
    """Open in it under the same numbers."""
    stop_signals: tuple[int, ...] = (signal.SIGTERM,)
    """End it for good, when nobody takes over."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended."""

    name: str
    pid: int
    code: int
    """As the shell's: negative for a signal."""
    uptime_s: float
    tail: tuple[str, ...]

    @property
    def reason(self) -> str:
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"

    @property
    def sentence(self) -> str:
        return f"{self.name} (pid {self.pid}) {self.reason} after {self.uptime_s:.1f} s"


class Child:
    """A running process. Make it with `start`; `wait` must be awaited exactly once."""

    def __init__(
        self, spec: ProcessSpec, process: asyncio.subprocess.Process, log: Path, on_line: OnLine
    ) -> None:
        self.spec = spec
        self._process = process
        self._log = log
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._started_s = asyncio.get_running_loop().time()

    @classmethod
    async def start(cls, spec: ProcessSpec, *, log: Path, on_line: OnLine) -> "Child":
        launcher = os.getpid()

        def die_with_launcher() -> None:  # in the child, between fork and exec
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)

        process = await asyncio.create_subprocess_exec(
            *spec.argv,
            env=dict(spec.env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_launcher,
            pass_fds=spec.fds,
            limit=1 << 20,
        )
        return cls(spec, process, log, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def send_signal(self, number: int) -> None:
        """Signal the process itself; one that has ended is left alone."""
        if self.is_running:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """SIGKILL for the process and whatever it started."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> Exit:
        """Pump the output until the process has ended."""
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(self._pump(), name=f"output of {self.spec.name}")
            code = await self._process.wait()
            # Something it started may hold the pipe open: its end is not waited for.
            await asyncio.wait({pump}, timeout=PIPE_GRACE_S)
            pump.cancel()
        uptime_s = asyncio.get_running_loop().time() - self._started_s
        return Exit(self.spec.name, self.pid, code, uptime_s, tuple(self._tail))

    async def _pump(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with self._log.open("ab") as log:
            while True:
                try:
                    line = await stream.readuntil(b"\n")
                except asyncio.IncompleteReadError as end:
                    line = end.partial
                except asyncio.LimitOverrunError as overrun:
                    line = await stream.readexactly(overrun.consumed)
                if not line:
                    return
                log.write(line)
                log.flush()
                text = line.decode(errors="replace").rstrip("\r\n")
                if text:
                    self._tail.append(text)
                if not self.spec.is_quiet:
                    self._on_line(self.spec.name, text)
