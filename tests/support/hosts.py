"""Hosts for tests: network namespaces on one switch, each with a /dev/shm of its own.

Nothing outside of the namespaces is touched; they are gone on leaving.
"""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
LISTENING = "0A"
LOOPBACK = "0100007F"
PRIVATE_SHM = 'mount -t tmpfs -o size=512m tmpfs /dev/shm && exec "$@"'
END_S = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Why there can be no such hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "unshare", "mount") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    name = f"mp{secrets.token_hex(3)}"
    made = _run(["ip", "netns", "add", name], check=False)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    _run(["ip", "netns", "del", name])
    return ""


class Hosts:
    """`hosts.add("a")` is at hosts.address("a"), 10.77.0.1 and so on."""

    def __init__(self) -> None:
        self._prefix = f"mp{secrets.token_hex(2)}"
        self._names: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._add_namespace("switch")
        self._in("switch", "ip", "link", "add", "bridge", "type", "bridge")
        self._in("switch", "ip", "link", "set", "bridge", "up")
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def add(self, name: str) -> str:
        """Its address."""
        self._add_namespace(name)
        self._names.append(name)
        inner, switch = self.namespace(name), self.namespace("switch")
        port = f"to-{name}"
        _run(["ip", "link", "add", port, "netns", switch, "type", "veth",
              "peer", "name", "eth0", "netns", inner])  # fmt: skip
        self._in("switch", "ip", "link", "set", port, "master", "bridge", "up")
        self._in(name, "ip", "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self._in(name, "ip", "link", "set", "eth0", "up")
        return self.address(name)

    def address(self, name: str) -> str:
        return f"10.77.0.{self._names.index(name) + 1}"

    def allow_only(self, name: str, *ports: int) -> bool:
        """From other hosts only these TCP ports can be reached; False where there is no nft."""
        if shutil.which("nft") is None:
            return False
        rules = "\n".join(
            [
                "table inet filter {",
                "  chain input {",
                "    type filter hook input priority 0; policy drop;",
                '    iif "lo" accept',
                "    ct state established,related accept",
                f"    tcp dport {{ {', '.join(map(str, ports))} }} accept",
                "  }",
                "}",
            ]
        )
        self._in(name, "nft", rules)
        return True

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path
    ) -> subprocess.Popen[str]:
        """A process on that host; its stdout is a pipe. It ends with the hosts at the latest."""
        with log.open("ab") as errors:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace(name), "unshare", "--mount",
                 "sh", "-c", PRIVATE_SHM, "sh", *argv],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )  # fmt: skip
        self._stack.callback(end, process)
        return process

    def within(self, name: str, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread that is on that host's network."""
        results: list[Any] = []

        def run() -> None:
            try:
                with open(f"/run/netns/{self.namespace(name)}") as namespace:
                    if _libc.setns(namespace.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                results.append(work())
            except BaseException as error:  # noqa: BLE001  (raised by the thread that waits)
                results.append(error)

        thread = threading.Thread(target=run, name=f"on {name}")
        thread.start()
        thread.join()
        if isinstance(results[0], BaseException):
            raise results[0]
        found: T = results[0]
        return found

    def listening(self, name: str) -> set[int]:
        """TCP ports that other hosts could reach."""
        lines = self.within(name, lambda: Path("/proc/thread-self/net/tcp").read_text())
        fields = [line.split() for line in lines.splitlines()[1:]]
        open_ = [one[1].split(":") for one in fields if one[3] == LISTENING]
        return {int(port, 16) for address, port in open_ if address != LOOPBACK}

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _add_namespace(self, name: str) -> None:
        _run(["ip", "netns", "add", self.namespace(name)])
        self._stack.callback(_run, ["ip", "netns", "del", self.namespace(name)])
        self._in(name, "ip", "link", "set", "lo", "up")

    def _in(self, name: str, *argv: str) -> None:
        _run(["ip", "netns", "exec", self.namespace(name), *argv])


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    """Signal it and wait; its exit code."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{process.args} did not end") from None
    if process.stdout is not None:
        process.stdout.close()
    return process.returncode


def _run(argv: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done
