"""What a cluster and a single node share: processes under one supervisor, from start to end."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from scripts.launcher.errors import LaunchError
from scripts.launcher.layout import names_of
from scripts.launcher.options import ClusterOptions
from scripts.launcher.processes import Exit, OnLine
from scripts.launcher.run_folder import RunFolder
from scripts.launcher.supervisor import RestartPolicy, Supervisor


class Supervised:
    """Enter and leave it in one task. Whoever extends it starts its processes in `_start`."""

    def __init__(
        self,
        options: ClusterOptions,
        *,
        on_line: OnLine = lambda _name, _line: None,
        on_death: Callable[[Exit], None] = lambda _end: None,
        restart_policy: RestartPolicy | None = None,
    ) -> None:
        self.options = options
        self.names = names_of(options)
        self.is_keeping_logs = options.is_keeping_logs
        self.deaths: list[Exit] = []
        self._on_line = on_line
        self._on_death = on_death
        self._restart_policy = restart_policy
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def wait_failed(self) -> LaunchError:
        """Until a process does not stay up."""
        error = await self._supervisor.wait_gave_up()
        self.is_keeping_logs = True
        return error

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop_all(self) -> None:
        raise NotImplementedError

    def _take_folder(self, shared_bytes: int) -> None:
        """A run folder, removed at the end."""
        self.folder = RunFolder(self.options.run_dir, shared_bytes=shared_bytes)
        self._stack.callback(lambda: self.folder.remove(is_keeping_logs=self.is_keeping_logs))

    async def _supervise(self) -> None:
        """A supervisor whose processes `_stop_all` ends; the run folder is there."""
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._supervisor = Supervisor(
            group,
            log_dir=self.folder.logs,
            on_line=self._on_line,
            on_death=self._note_death,
            policy=self._restart_policy,
        )
        self._stack.push_async_callback(self._stop_all)

    def _note_death(self, end: Exit) -> None:
        self.deaths.append(end)
        self._on_death(end)
