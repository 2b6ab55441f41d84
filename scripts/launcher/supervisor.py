"""Keeps a set of processes running: says which one died and why, starts it again with back-off,
and gives up with a clear error when one dies quickly again and again."""

import asyncio
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts.launcher.errors import LaunchError
from scripts.launcher.processes import Child, Exit, OnLine, ProcessSpec

BAD_SETTINGS_CODE = 2
"""A service exits with it when a setting is wrong: starting it again cannot help."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a process that died is started again."""

    first_delay_s: float = 0.25
    max_delay_s: float = 5.0
    quick_death_s: float = 10.0
    """A process that lived shorter died quickly."""
    max_quick_deaths: int = 5

    def delay_s(self, quick_deaths: int) -> float:
        """Before the next start, after `quick_deaths` quick ones in a row."""
        doublings = min(max(quick_deaths - 1, 0), 16)
        return min(self.first_delay_s * float(2**doublings), self.max_delay_s)


class GaveUp(LaunchError):
    """A process that does not stay up."""

    def __init__(self, last: Exit, *, quick_deaths: int) -> None:
        lines = "".join(f"\n  {line}" for line in last.tail)
        times = f" ({quick_deaths} times in a row)" if quick_deaths > 1 else ""
        super().__init__(
            f"{last.sentence}{times}, giving up. Its last lines:{lines or ' none'}",
            hint="the whole log of each process is in the run folder",
        )
        self.last = last


class _Watched:
    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.leaving: Child | None = None
        """The one before it, as long as it finishes what it has."""
        self.left = asyncio.Event()
        self.num_tasks = 0
        self.is_wanted = True
        self.woken = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def children(self) -> list[Child]:
        return [child for child in (self.leaving, self.child) if child is not None]


class Supervisor:
    """Owns its children; its tasks live in the caller's TaskGroup.

    Giving up on one process leaves the others alone: `wait_gave_up` tells the owner.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        *,
        log_dir: Path,
        on_line: OnLine,
        on_death: Callable[[Exit], None],
        policy: RestartPolicy | None = None,
    ) -> None:
        self._group = group
        self._log_dir = log_dir
        self._on_line = on_line
        self._on_death = on_death
        self._policy = policy or RestartPolicy()
        self._watched: dict[str, _Watched] = {}
        self._gave_up: asyncio.Future[GaveUp] = asyncio.get_running_loop().create_future()

    @property
    def names(self) -> list[str]:
        return list(self._watched)

    async def start(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running from now on."""
        if spec.name in self._watched:
            raise ValueError(f"there is a process {spec.name} already")
        watched = self._watched[spec.name] = _Watched(spec)
        watched.child = await self._spawn(spec)
        self._keep(watched, watched.child)

    def hand_over(self, name: str) -> None:
        """Start the next process of this name beside the one that runs, which leaves: its end is
        no death. Nothing when it is not to run, does not, or hands over already.
        """
        watched = self._watched.get(name)
        if watched is None or not watched.is_wanted or watched.leaving or self.child(name) is None:
            return
        watched.leaving, watched.child = watched.child, None
        watched.left.clear()
        self._keep(watched, None)

    async def replace(self, name: str, *, grace_s: float | None = None) -> None:
        """Hand over and tell the old process to drain; SIGKILL after `grace_s`, where it is given.

        Returns when it is gone; its successor may not be ready yet.
        """
        watched = self._watched[name]
        if watched.leaving is not None:
            await watched.left.wait()
        self.hand_over(name)
        old = watched.leaving
        if old is None:
            return  # it died and is started anew as it is
        old.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await watched.left.wait()
        except TimeoutError:
            old.kill_group()
            await watched.left.wait()

    def child(self, name: str) -> Child | None:
        """The process that runs under this name now; None between death and restart."""
        child = self._watched[name].child
        return child if child is not None and child.is_running else None

    def send_signal(self, name: str, number: int) -> None:
        """Signal the process; it counts as a death and is started again."""
        child = self.child(name)
        if child is None:
            raise ProcessLookupError(f"{name} does not run now")
        child.send_signal(number)

    async def wait_gave_up(self) -> GaveUp:
        """Until a process does not stay up; the first one that did not."""
        return await asyncio.shield(self._gave_up)

    async def stop(self, names: Iterable[str], *, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; returns when all of them are gone."""
        watched = [self._watched[name] for name in names]
        for one in watched:
            one.is_wanted = False
            one.woken.set()
            for child in one.children:
                self._tell_to_end(child)
        try:
            async with asyncio.timeout(grace_s):
                for one in watched:
                    await one.ended.wait()
        except TimeoutError:
            self.kill(one.spec.name for one in watched)
            for one in watched:
                await one.ended.wait()
        for one in watched:
            del self._watched[one.spec.name]

    def kill(self, names: Iterable[str]) -> None:
        """SIGKILL at once; they are not started again."""
        for name in names:
            watched = self._watched[name]
            watched.is_wanted = False
            watched.woken.set()
            for child in watched.children:
                child.kill_group()

    @staticmethod
    def _tell_to_end(child: Child) -> None:
        # A stopped process must be able to take its signals.
        for number in (*child.spec.stop_signals, signal.SIGCONT):
            child.send_signal(number)

    async def _spawn(self, spec: ProcessSpec) -> Child:
        log = self._log_dir / f"{spec.name}.log"
        return await Child.start(spec, log=log, on_line=self._on_line)

    def _keep(self, watched: _Watched, child: Child | None) -> None:
        watched.num_tasks += 1
        name = f"supervise {watched.spec.name}"
        self._group.create_task(self._keep_running(watched, child), name=name)

    async def _keep_running(self, watched: _Watched, child: Child | None) -> None:
        """Without a child it starts one; ends with the last, or with one that leaves."""
        quick_deaths = 0
        try:
            while True:
                if child is None:
                    child = watched.child = await self._spawn(watched.spec)
                    if not watched.is_wanted:  # told to stop while it was being started
                        self._tell_to_end(child)
                end = await child.wait()
                if child is watched.leaving:
                    if end.code and watched.is_wanted:
                        self._on_death(end)
                    return
                if not watched.is_wanted:
                    return
                self._on_death(end)
                is_quick = end.uptime_s < self._policy.quick_death_s
                quick_deaths = quick_deaths + 1 if is_quick else 0
                if self._gives_up(end, quick_deaths):
                    return
                await self._pause(watched, self._policy.delay_s(quick_deaths))
                if not watched.is_wanted:
                    return
                child = None
        finally:
            if child is not None and child.is_running:
                child.kill_group()
            if child is not None and child is watched.leaving:
                watched.leaving = None
                watched.left.set()
            watched.num_tasks -= 1
            if not watched.num_tasks:
                watched.ended.set()

    def _gives_up(self, end: Exit, quick_deaths: int) -> bool:
        if end.code != BAD_SETTINGS_CODE and quick_deaths < self._policy.max_quick_deaths:
            return False
        if not self._gave_up.done():
            self._gave_up.set_result(GaveUp(end, quick_deaths=quick_deaths))
        return True

    @staticmethod
    async def _pause(watched: _Watched, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await watched.woken.wait()
        except TimeoutError:
            return
