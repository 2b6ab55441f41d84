"""The supervisor over real, small child processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from scripts.launcher.processes import Exit, ProcessSpec
from scripts.launcher.supervisor import RestartPolicy, Supervisor
from tests.support.deadline import until

QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.02, quick_death_s=60.0, max_quick_deaths=3)


class Seen:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.deaths: list[Exit] = []

    def texts(self, name: str) -> list[str]:
        return [line for source, line in self.lines if source == name]


@asynccontextmanager
async def supervised(
    folder: Path, seen: Seen, policy: RestartPolicy = QUICK
) -> AsyncIterator[Supervisor]:
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(
            group,
            log_dir=folder,
            on_line=lambda name, line: seen.lines.append((name, line)),
            on_death=seen.deaths.append,
            policy=policy,
        )
        try:
            yield supervisor
        finally:
            await supervisor.stop(supervisor.names, grace_s=2)


def python(name: str, code: str) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-S", "-u", "-c", code), dict(os.environ))


SLEEP = "print('up', flush=True); import time; time.sleep(60)"


async def test_output_is_given_by_lines_under_the_name_and_logged(tmp_path: Path) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", f"print('one'); print('two'); {SLEEP}"))
        await until(lambda: seen.texts("a") == ["one", "two", "up"])
    assert (tmp_path / "a.log").read_text() == "one\ntwo\nup\n"


async def test_very_long_and_unfinished_lines_are_taken(tmp_path: Path) -> None:
    seen = Seen()
    code = f"import sys; sys.stdout.write('x' * 3_000_000 + '\\ntail'); sys.stdout.flush(); {SLEEP}"
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", code))
        await until(lambda: any(text.endswith("tailup") for text in seen.texts("a")))
    assert sum(len(text) for text in seen.texts("a")) == 3_000_000 + len("tailup")


async def test_a_killed_process_is_named_with_its_signal_and_started_again(tmp_path: Path) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", SLEEP))
        await until(lambda: seen.texts("a"))
        child = supervisor.child("a")
        assert child is not None
        supervisor.send_signal("a", signal.SIGKILL)
        await until(lambda: len(seen.texts("a")) == 2)
        again = supervisor.child("a")
        assert again is not None
        assert again.pid != child.pid
    (death,) = seen.deaths
    assert death.code == -signal.SIGKILL
    assert f"a (pid {child.pid}) was killed by SIGKILL" in death.sentence
    assert death.tail == ("up",)


async def test_a_process_that_dies_again_and_again_is_given_up_with_its_last_words(
    tmp_path: Path,
) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", "print('no such model'); raise SystemExit(1)"))
        await supervisor.start(python("b", SLEEP))
        error = await asyncio.wait_for(supervisor.wait_gave_up(), 10)
        assert "a (pid " in error.message
        assert "exited with code 1" in error.message
        assert "3 times in a row" in error.message
        assert "no such model" in error.message
        assert supervisor.child("b") is not None
    assert len(seen.deaths) == 3


async def test_bad_settings_are_not_tried_twice(tmp_path: Path) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", "print('MOONPOOL_DTYPE: wrong'); raise SystemExit(2)"))
        error = await asyncio.wait_for(supervisor.wait_gave_up(), 10)
    assert "MOONPOOL_DTYPE: wrong" in error.message
    assert len(seen.deaths) == 1


async def test_stop_ends_gracefully_and_is_no_death(tmp_path: Path) -> None:
    seen = Seen()
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", code))
        await until(lambda: seen.texts("a"))
        await supervisor.stop(["a"], grace_s=5)
        assert supervisor.names == []
    assert seen.texts("a") == ["up", "bye"]
    assert seen.deaths == []


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_stop_kills_what_does_not_listen(tmp_path: Path, is_stopped: bool) -> None:
    seen = Seen()
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", code))
        await until(lambda: seen.texts("a"))
        child = supervisor.child("a")
        assert child is not None
        if is_stopped:
            child.send_signal(signal.SIGSTOP)
        await supervisor.stop(["a"], grace_s=0.2)
        assert not psutil.pid_exists(child.pid)


DRAINS = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('drains', flush=True))\n"
    "signal.signal(signal.SIGUSR1, lambda *_: (print('left', flush=True), os._exit(0)))\n"
    "print('up', flush=True)\n"
    "while True: time.sleep(60)"
)


async def test_a_successor_runs_beside_the_one_that_leaves_whose_end_is_no_death(
    tmp_path: Path,
) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", DRAINS))
        await until(lambda: seen.texts("a") == ["up"])
        old = supervisor.child("a")
        assert old is not None
        replaced = asyncio.ensure_future(supervisor.replace("a", grace_s=30))
        await until(lambda: sorted(seen.texts("a")) == ["drains", "up", "up"])
        supervisor.hand_over("a")  # it does already
        new = supervisor.child("a")
        assert new is not None
        assert new.pid != old.pid
        assert old.is_running
        assert not replaced.done()
        old.send_signal(signal.SIGUSR1)
        await asyncio.wait_for(replaced, 10)
        assert not old.is_running
        assert supervisor.child("a") is new
        assert seen.texts("a").count("up") == 2
        # The successor is kept running as its predecessor was.
        new.send_signal(signal.SIGKILL)
        await until(lambda: seen.texts("a").count("up") == 3)
    assert [death.pid for death in seen.deaths] == [new.pid]


async def test_one_that_does_not_leave_is_killed_and_the_successor_stays(tmp_path: Path) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        await supervisor.start(python("a", DRAINS))
        await until(lambda: seen.texts("a") == ["up"])
        old = supervisor.child("a")
        assert old is not None
        await supervisor.replace("a", grace_s=0.2)
        assert not psutil.pid_exists(old.pid)
        await until(lambda: seen.texts("a").count("up") == 2)
    assert [death.reason for death in seen.deaths] == ["was killed by SIGKILL"]


async def test_stop_ends_the_one_that_leaves_too(tmp_path: Path) -> None:
    seen = Seen()
    async with supervised(tmp_path, seen) as supervisor:
        spec = python("a", DRAINS)
        ends = (signal.SIGTERM, signal.SIGUSR1)
        await supervisor.start(replace(spec, stop_signals=ends))
        await until(lambda: seen.texts("a") == ["up"])
        supervisor.hand_over("a")
        await until(lambda: seen.texts("a") == ["up", "up"])
        await supervisor.stop(["a"], grace_s=30)
        assert supervisor.names == []
    assert seen.texts("a").count("left") == 2
    assert seen.deaths == []


async def test_stop_during_the_back_off_does_not_wait_for_it(tmp_path: Path) -> None:
    seen = Seen()
    slow = RestartPolicy(first_delay_s=60.0, max_delay_s=60.0)
    async with supervised(tmp_path, seen, slow) as supervisor:
        await supervisor.start(python("a", "raise SystemExit(1)"))
        await until(lambda: seen.deaths)
        await asyncio.wait_for(supervisor.stop(["a"], grace_s=30), 2)


async def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = (
        "import asyncio, pathlib, os, sys\n"
        "from scripts.launcher.processes import Child, ProcessSpec\n"
        "async def main():\n"
        f"    spec = ProcessSpec('a', (sys.executable, '-S', '-c', {SLEEP!r}), dict(os.environ))\n"
        f"    log = pathlib.Path({str(tmp_path / 'a.log')!r})\n"
        "    child = await Child.start(spec, log=log, on_line=lambda *_: None)\n"
        "    print(child.pid, flush=True)\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", launcher, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pid = int(await asyncio.wait_for(process.stdout.readline(), 10))
    assert psutil.pid_exists(pid)
    process.kill()
    await process.wait()
    await until(lambda: not _is_running(pid), what="the orphan is gone")


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_back_off_doubles_up_to_its_limit() -> None:
    policy = RestartPolicy(first_delay_s=0.25, max_delay_s=5.0)
    delays = [policy.delay_s(deaths) for deaths in (0, 1, 2, 3, 6, 1000)]
    assert delays == [0.25, 0.25, 0.5, 1.0, 5.0, 5.0]
