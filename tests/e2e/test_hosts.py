"""Three hosts: the control plane on one, a node on each of two others, firewalls between them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.credentials.credential_set import make_set
from tests.support import hosts as support
from tests.support.api import Answer, Api
from tests.support.cluster import DUMMY_MODEL
from tests.support.deadline import wait_until
from tests.support.hosts import Hosts

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
MOONPOOL = [sys.executable, "-P", "-m", "scripts.cli.main"]
ADMIN_KEY = "the-admin-key"
NATS_PORT, HTTP_PORT, KV_PORT = 4222, 8000, 7400
GRID = 256
NODE_FOLDERS = ("transfer", "prefill", "decode")
READY_S = 150.0


@dataclass
class Spread:
    """A cluster over three hosts."""

    hosts: Hosts
    folder: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, host: str, *arguments: str) -> None:
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder / host), "MOONPOOL_THREADS": "1"}
        argv = [*MOONPOOL, *arguments, "--model", DUMMY_MODEL, "--json"]
        log = self.folder / f"{host}.log"
        self.processes[host] = self.hosts.start(host, argv, env, log)

    def ready(self, host: str) -> dict[str, Any]:
        stdout = self.processes[host].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, (self.folder / f"{host}.log").read_text()
        said: dict[str, Any] = json.loads(line)
        return said

    def ask(self, prompt: list[int], prefill: str, decode: str, **fields: Any) -> Answer:
        api = Api(f"http://127.0.0.1:{HTTP_PORT}", ADMIN_KEY, DUMMY_MODEL)
        placement = {"prefill": f"{prefill}-prefill-1", "decode": f"{decode}-decode-1"}
        return self.hosts.within("a", lambda: api.complete(prompt, placement=placement, **fields))

    def is_serving(self) -> bool:
        url = f"http://127.0.0.1:{HTTP_PORT}/ready"
        status = self.hosts.within("a", lambda: httpx.get(url, trust_env=False).status_code)
        return status == 200


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    reason = support.why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    with Hosts() as hosts:
        nats_host = hosts.add("a")
        credentials = make_set(folder / "set", hosts=[nats_host])
        spread = Spread(hosts, folder)
        spread.start(
            "a", "up", "--nodes", "0", "--nats-host", nats_host, "--nats-port", str(NATS_PORT),
            "--port", str(HTTP_PORT), "--credentials", str(credentials.folder),
            "--admin-key", ADMIN_KEY,
        )  # fmt: skip
        spread.ready("a")
        hosts.allow_only("a", NATS_PORT)
        for name in ("b", "c"):
            hosts.add(name)
            hosts.allow_only(name, KV_PORT)
            own = copy_for_node(credentials.folder, folder / f"set-{name}")
            spread.start(
                name, "node", "--nats", f"nats://{nats_host}:{NATS_PORT}", "--name", name,
                "--credentials", str(own), "--ports", str(KV_PORT), "--pool-size", "32M",
            )  # fmt: skip
        for name in ("b", "c"):
            spread.ready(name)
        wait_until(spread.is_serving, timeout_s=READY_S, what="a model is served")
        yield spread


def copy_for_node(whole: Path, own: Path) -> Path:
    """What docs/multi-host.md says to copy: no other users' passwords come along."""
    own.mkdir()
    for name in NODE_FOLDERS:
        shutil.copytree(whole / name, own / name)
    shutil.copy(whole / "format", own / "format")
    return own


def prompt_of(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(3 * GRID + 9)]


def test_a_remote_hit_and_a_far_decode_go_over_streams_between_hosts(spread: Spread) -> None:
    prompt = prompt_of(1)
    cold = spread.ask(prompt, "b", "b", cache="off")
    spread.ask(prompt, "b", "b")
    remote = spread.ask(prompt, "c", "c")
    assert (remote.cached_tokens, remote.cached_from) == (3 * GRID, "remote")
    assert (remote.served["transport"], remote.tokens) == ("tcp", cold.tokens)
    across = spread.ask(prompt_of(2), "b", "c")
    assert across.served["transport"] == "tcp"
    assert across.served["streamed_bytes"] > 0
    assert across.tokens == spread.ask(prompt_of(2), "c", "c", cache="off").tokens


def test_only_nats_and_the_kv_ports_can_be_reached(spread: Spread) -> None:
    assert spread.hosts.listening("a") == {NATS_PORT}
    assert spread.hosts.listening("b") == spread.hosts.listening("c") == {KV_PORT}


def test_a_node_that_is_stopped_leaves_the_others_serving_and_comes_back(spread: Spread) -> None:
    prompt = prompt_of(3)
    answer = spread.ask(prompt, "c", "c")
    assert support.end(spread.processes.pop("c"), signal.SIGINT) == 0
    assert spread.ask(prompt, "b", "b").tokens == answer.tokens
    own, nats_host = spread.folder / "set-c", spread.hosts.address("a")
    spread.start(
        "c", "node", "--nats", f"nats://{nats_host}:{NATS_PORT}", "--name", "c",
        "--credentials", str(own), "--ports", str(KV_PORT), "--pool-size", "32M",
    )  # fmt: skip
    spread.ready("c")

    def is_back() -> bool:
        return spread.ask(prompt, "c", "b").tokens == answer.tokens

    wait_until(is_back, timeout_s=30, what="it serves again")
