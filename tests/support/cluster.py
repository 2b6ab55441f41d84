"""A whole cluster for tests, hosted in a thread of its own so that any test may use it.

`cluster.kill("prefill-1")`, `cluster.pid("decode-1")`, `cluster.base_url`, `cluster.wait_ready()`.
"""

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Self, TypeVar

from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import ClusterOptions
from scripts.launcher.processes import Exit
from scripts.launcher.supervisor import RestartPolicy

T = TypeVar("T")
DUMMY_MODEL = "dummy:tiny"
DUMMY_POOL_BYTES = 32 << 20
START_TIMEOUT_S = 120.0
"""Four workers import torch at once, beside other tests."""
READY_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 90.0
KEPT_LINES = 4000
# Tests kill on purpose and often: what counts as a quick death here must be quicker.
RESTART_POLICY = RestartPolicy(first_delay_s=0.05, quick_death_s=1.0, max_quick_deaths=5)


# Other tests take the cores for longer than that: a hit that is not looked for in time is none.
PATIENT = {"MOONPOOL_MATCH_TIMEOUT_MS": "200"}


def dummy_options(**changes: Any) -> ClusterOptions:
    """Two nodes of the tiny dummy model; small and quick to start."""
    given: Mapping[str, Mapping[str, str]] = changes.pop("extra_env", {})
    fields: dict[str, Any] = {
        "model": DUMMY_MODEL,
        "pool_bytes": DUMMY_POOL_BYTES,
        "drain_timeout_s": 2.0,
        "threads": 1,
        "extra_env": {**given, "conductor": {**PATIENT, **given.get("conductor", {})}},
        **changes,
    }
    return ClusterOptions(**fields)


class HostedCluster:
    """Starts on entering, ends on leaving; every method may be called from any thread."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.lines: deque[tuple[str, str]] = deque(maxlen=KEPT_LINES)
        self.num_lines = 0
        """That were said, kept or not."""
        self.deaths: list[Exit] = []
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait(START_TIMEOUT_S + 30)
        if self._error is not None:
            self._thread.join()
            raise AssertionError(f"cluster did not start: {self._error}\n{self.logs()}")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CALL_TIMEOUT_S)
        assert not self._thread.is_alive(), "the cluster did not end"
        assert not self._refused(), f"NATS users may do too little: {self._refused()}"
        left = [path for path in (self._folders) if path.exists()]
        assert not left, f"the cluster left {left}"

    # --- use ---------------------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        return self.cluster.base_url

    @property
    def base_urls(self) -> list[str]:
        """Of all gateways."""
        return self.cluster.base_urls

    @property
    def nats_url(self) -> str:
        return self.cluster.nats_url

    @property
    def redis_url(self) -> str:
        """With the operator's user, where Redis has users."""
        made = self.cluster.credentials
        if made is None or self.options.redis_url is not None:
            return self.cluster.redis_url
        return made.redis_url(self.cluster.redis_url)

    @property
    def admin_key(self) -> str:
        return self.cluster.admin_key

    def pid(self, name: str) -> int:
        """Of the process that runs under this name now."""
        return self.cluster.process(name).pid

    def deaths_of(self, name: str) -> list[Exit]:
        """Its ends that nobody planned."""
        return [end for end in self.deaths if end.name == name]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal a process; one that dies of it is started again."""
        self.call(self._at_once(self.cluster.kill, name, number))

    def pause(self, name: str) -> None:
        self.kill(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.kill(name, signal.SIGCONT)

    def stop(self, name: str) -> None:
        """End a process for good; `start_again` brings it back."""
        self.call(self.cluster.stop(name))

    def start_again(self, name: str) -> None:
        self.call(self.cluster.start_again(name))

    def restart(self, name: str) -> None:
        self.call(self.cluster.restart(name))

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        self.call(self.cluster.wait_ready(timeout_s))

    def logs(self, name: str | None = None, *, since: int = 0) -> str:
        """The latest output of one process or of all, after the first `since` lines of all."""
        lines = list(self.lines)
        lines = lines[max(0, len(lines) - (self.num_lines - since)) :]
        return "\n".join(f"{source} | {line}" for source, line in lines if name in (None, source))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _refused(self) -> list[str]:
        """What NATS did not allow. The right to answer dies with the server that was asked."""
        said = [line for _, line in self.lines if "permissions violation" in line.lower()]
        return [line for line in said if '"_inbox.' not in line.lower()]

    # --- the thread --------------------------------------------------------------------------

    @staticmethod
    async def _at_once(function: Any, *arguments: Any) -> None:
        function(*arguments)

    def _run(self) -> None:
        try:
            asyncio.run(self._host())
        except BaseException as error:  # noqa: BLE001  (shown by the thread that waits)
            self._error = error
        finally:
            self._started.set()

    def _keep(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        self.num_lines += 1

    async def _host(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._folders: list[Any] = []
        self.cluster = LocalCluster(
            self.options,
            on_line=self._keep,
            on_death=self.deaths.append,
            restart_policy=RESTART_POLICY,
        )
        async with self.cluster as cluster:
            self._folders += [cluster.folder.path, cluster.folder.shared_dir]
            try:
                await cluster.wait_ready(START_TIMEOUT_S)
                self._started.set()
                await self._closing.wait()
            finally:
                cluster.is_keeping_logs = False  # the test shows `lines`
