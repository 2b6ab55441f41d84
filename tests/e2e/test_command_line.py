"""The commands as a user runs them: real processes, the tiny dummy model."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.deadline import wait_until

pytestmark = pytest.mark.e2e
MOONPOOL = [sys.executable, "-P", "-m", "scripts.cli.main"]
START_S = 60.0
STOP_S = 30.0


class Up:
    """`moonpool up --json` in the background."""

    def __init__(self, home: Path, *arguments: str) -> None:
        # Its own home, so that tests do not find each other's clusters.
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(home)}
        self.log = home / "up.log"
        options = ["--model", "dummy:tiny", "--port", "0", "--pool-size", "32M", "--json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*MOONPOOL, "up", *options, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.env,
                start_new_session=True,
            )

    def wait_ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        ready: dict[str, Any] = json.loads(line)
        return ready

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def run(self, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Another command beside it, with something typed into it."""
        return subprocess.run(
            [*MOONPOOL, *arguments],
            input=typed,
            capture_output=True,
            text=True,
            env=self.env,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.close()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"moonpool-{pid}-*"))


def assert_nothing_is_left(launcher: int, ready: dict[str, Any]) -> None:
    wait_until(
        lambda: not [pid for pid in ready["pids"].values() if is_running(pid)],
        what="every process is gone",
    )
    run_dir = Path(ready["run_dir"])
    wait_until(lambda: not run_dir.exists(), what="the run folder is gone")
    wait_until(lambda: not shared_memory_of(launcher), what="shared memory is free")
    port = httpx.URL(ready["url"]).port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.timeout(150)
def test_up_serves_until_ctrl_c_and_leaves_nothing(up: Up) -> None:
    ready = up.wait_ready()
    assert ready["ok"] is True
    context = json.loads(Path(ready["nats_context"]).read_text())
    assert context["url"] == ready["nats_url"]

    status = up.run("status", "--json")
    assert status.returncode == 0, status.stdout + status.stderr
    seen = json.loads(status.stdout)
    assert {service["service"] for service in seen["services"]} == {
        "gateway",
        "conductor",
        "cache-index",
        "transfer",
        "prefill",
        "decode",
    }
    assert all(one["metrics"].startswith("http://127.0.0.1:") for one in seen["services"])

    chat = up.run("chat", "--json", "--message", "Hello", "--max-tokens", "8")
    assert chat.returncode == 0, chat.stderr
    answer = json.loads(chat.stdout)
    assert answer["usage"]["completion_tokens"] >= 1

    talk = up.run("chat", "--max-tokens", "8", typed="Hello\n\nAnd more\n/quit\n")
    assert talk.returncode == 0, talk.stderr
    assert talk.stderr.count("prompt tokens") == 2

    assert up.stop() == 0, up.log.read_text()
    assert_nothing_is_left(up.process.pid, ready)
    assert json.loads(up.run("status", "--json").stdout)["ok"] is False


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_killed_launcher_leaves_nothing_either(up: Up) -> None:
    ready = up.wait_ready()
    up.process.kill()
    up.process.wait(STOP_S)
    assert_nothing_is_left(up.process.pid, ready)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_service_that_is_killed_or_restarted_comes_back(up: Up) -> None:
    ready = up.wait_ready()
    os.kill(ready["pids"]["cache-index-1"], signal.SIGKILL)
    wait_until(
        lambda: (
            "cache-index-1 (pid" in up.log.read_text()
            and "was killed by SIGKILL" in up.log.read_text()
        ),
        what="the death is reported",
    )
    wait_until(lambda: up.run("status").returncode == 0, timeout_s=30, what="all is healthy")

    unknown = up.run("restart", "gateway-9", "--json")
    assert "gateway-9" in json.loads(unknown.stdout)["error"]["message"]
    assert "conductor-1, cache-index-1" in json.loads(unknown.stdout)["error"]["hint"]
    done = up.run("restart", "conductor-1", "gateway", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    names = [one["id"] for one in json.loads(done.stdout)["restarted"]]
    assert names == ["gateway-1", "conductor-1"]
    assert not is_running(ready["pids"]["conductor-1"])
    wait_until(
        lambda: not is_running(ready["pids"]["gateway-1"]),
        timeout_s=30,
        what="the old gateway has finished",
    )
    assert up.run("status").returncode == 0
    assert httpx.get(f"{ready['url']}/models", trust_env=False).status_code == 200
    assert up.stop(signal.SIGTERM) == 0


def test_ctrl_c_while_it_starts_stops_it(up: Up) -> None:
    wait_until(
        lambda: shared_memory_of(up.process.pid), timeout_s=START_S, what="it began to start"
    )
    assert up.stop() == 0, up.log.read_text()
    assert shared_memory_of(up.process.pid) == []


def test_a_busy_port_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = Up(tmp_path, "--port", str(port))
        try:
            assert up.process.wait(START_S) == 1
            assert up.process.stdout is not None
            error = json.loads(up.process.stdout.read())["error"]
        finally:
            up.close()
    assert f"port {port} on 127.0.0.1 is busy" in error["message"]
    assert "--port" in error["hint"]


def test_a_model_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MOONPOOL, "up", "--model", "dummy:huge", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "dummy:tiny" in json.loads(done.stdout)["error"]["message"]


def test_commands_without_a_cluster_say_what_to_do(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    for command in (["status"], ["chat", "--message", "x", "--url", "http://127.0.0.1:9"]):
        done = subprocess.run(
            [*MOONPOOL, *command, "--json"],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "moonpool up" in json.loads(done.stdout)["error"]["hint"]


def test_every_command_has_help_with_examples() -> None:
    for command in ("up", "chat", "demo", "explain", "bill", "status", "restart"):
        done = subprocess.run(
            [*MOONPOOL, command, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        assert "Examples" in done.stdout
        assert "--json" in done.stdout
