"""compose.yaml of a clean clone of this repository, run as a project of its own and removed."""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.cluster import DUMMY_MODEL
from tests.support.deadline import wait_until
from tests.support.load import Load, Outcomes

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "conductor", "cache-index", "transfer", "prefill", "decode")
FREE_PORTS = {"MOONPOOL_PORT": "0", "MOONPOOL_PROMETHEUS_PORT": "0"}
PROJECT_LABEL = "com.docker.compose.project"
SIGNAL = """
import os, signal, sys
from pathlib import Path
for path in Path("/proc").glob("[0-9]*/cmdline"):
    if path.read_bytes().split(b"\\0")[-2:] == [sys.argv[1].encode(), b""] and path.parts[2] != "1":
        os.kill(int(path.parts[2]), getattr(signal, sys.argv[2]))
        break
else:
    raise SystemExit("it does not run")
"""
UP_S = 1_800.0
COMMAND_S = 300.0


def skip_without_compose() -> None:
    """Skips the test where compose cannot be run, and says why."""
    reason = why_not()
    if reason:
        pytest.skip(reason)


def why_not() -> str:
    """Why compose cannot be run here; empty when it can."""
    if shutil.which("docker") is None:
        return "there is no docker"
    for command in (["docker", "compose", "version"], ["docker", "info"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            # What follows is advice or, of docker info, no more than that it could not print.
            said = done.stderr.strip().partition("\n")[0]
            return f"{' '.join(command)}: {said or f'exit code {done.returncode}'}"
    return ""


class ComposeProject:
    """`base_url`, `base_urls` and `admin_key` are those that `Load` asks."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.admin_key = secrets.token_urlsafe(16)
        self._clone = folder / "moonpool"
        self._project = f"moonpool-test-{secrets.token_hex(3)}"
        # Of the user's own settings none comes along, but for those of the build.
        own = {name: one for name, one in os.environ.items() if not name.startswith("MOONPOOL_")}
        self._env = own | {**FREE_PORTS, "MOONPOOL_ADMIN_KEY": self.admin_key, **variables}

    def __enter__(self) -> Self:
        self._run(["git", "clone", "-q", str(ROOT), str(self._clone)], cwd=ROOT)
        return self

    def __exit__(self, *_error: object) -> None:
        self.compose("--profile", "*", "down", "-v", "-t", "5", "--remove-orphans")

    @cached_property
    def base_url(self) -> str:
        """Of the one gateway, which stays the same container."""
        return f"http://{self.compose('port', 'gateway', '8000').strip()}"

    @property
    def base_urls(self) -> list[str]:
        return [self.base_url]

    def start(self) -> None:
        """From a clone to one healthy container of each service, as the README says it."""
        self.compose("up", "-d", "--build", "--wait", timeout_s=UP_S)

    def up(self, **scale: int) -> None:
        """As many containers of each service as wanted, all of them healthy; waits for it."""
        counts = [f"{name.replace('_', '-')}={count}" for name, count in scale.items()]
        options = [part for count in counts for part in ("--scale", count)]
        self.compose("up", "-d", "--no-recreate", *options, timeout_s=UP_S)
        self.wait_healthy()

    def wait_healthy(self) -> None:
        wait_until(lambda: not self.unhealthy(), timeout_s=UP_S, what="all containers are healthy")

    def unhealthy(self) -> dict[str, str]:
        """Containers that are not healthy, and how they are instead."""
        states = {one["Name"]: one["State"] for one in self.containers()}
        return {
            name: state["Status"] if "Health" not in state else state["Health"]["Status"]
            for name, state in states.items()
            if "Health" in state and state["Health"]["Status"] != "healthy"
        }

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """What docker says of the containers that run, of one service or of all."""
        ids = self.compose("ps", "-q", *([service] if service else [])).split()
        if not ids:
            return []
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", *ids))
        return found

    def ends(self, since_s: float) -> dict[str, int]:
        """Exit codes of the containers that ended since then (seconds of the epoch), by name."""
        lines = self.docker(
            *("events", "--since", f"{since_s:.3f}", "--until", f"{time.time():.3f}"),
            *("--filter", "event=die", "--filter", f"label={PROJECT_LABEL}={self._project}"),
            *("--format", "{{.Actor.Attributes.name}} {{.Actor.Attributes.exitCode}}"),
        ).splitlines()
        return {name: int(code) for name, code in map(str.split, lines)}

    def signal(self, service: str, name: str) -> None:
        """Send it to the process itself, in the first container of a service."""
        module = f"services.{service.replace('-', '_')}"
        self.compose("exec", "-T", service, "python", "-c", SIGNAL, module, name)

    def logs(self, service: str = "") -> str:
        return self.compose("logs", "--no-color", *([service] if service else []))

    def compose(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        command = ["docker", "compose", "-p", self._project, *arguments]
        return self._run(command, cwd=self._clone, timeout_s=timeout_s)

    def docker(self, *arguments: str) -> str:
        return self._run(["docker", *arguments], cwd=self._clone)

    def _run(self, command: list[str], *, cwd: Path, timeout_s: float = COMMAND_S) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-3000:]}"
        return done.stdout


@contextmanager
def dummy_project(folder: Path, **variables: str) -> Iterator[ComposeProject]:
    """One container of each service, with the tiny dummy model; skips where compose cannot run."""
    skip_without_compose()
    small = {
        "MOONPOOL_MODEL": DUMMY_MODEL,
        "MOONPOOL_POOL_BYTES": str(64 << 20),
        "MOONPOOL_SHARED_SIZE": "512m",
    }
    with ComposeProject(folder, **small, **variables) as project:
        project.start()
        yield project


def under_load(
    project: ComposeProject, load: Load, fault: Callable[[], None], *, after_s: float = 3.0
) -> Outcomes:
    """Every answer is right, whatever the fault."""

    async def run() -> Outcomes:
        return await load.during(lambda: asyncio.to_thread(fault), before_s=2.0, after_s=after_s)

    outcomes = asyncio.run(run())
    assert outcomes.num_right > 0
    assert set(outcomes.counts) == {"right"}, (outcomes.errors, project.logs()[-5_000:])
    return outcomes
