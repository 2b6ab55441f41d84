"""Mooncake's store for a bench: its master, a process with the store's memory, and a client."""

import os
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from scripts.bench.interleave import VariantError
from scripts.bench.peer_process import PeerProcess, clean_env
from scripts.bench.peers import environment

MIB = 1 << 20
END_S = 5.0
LEASE_MS = 2_000
"""A get that takes longer fails; its blocks can be removed only after it."""
MASTER = "mooncake_master"


class MooncakeStore:
    """One instance per run; says once and for all why it is not there."""

    def __init__(self, cache_dir: Path, block_mib: int, num_blocks: int, stack: ExitStack) -> None:
        self._failure = ""
        self._num_blocks = num_blocks
        env = environment("mooncake", cache_dir)
        module = env.peer.module
        if not env.is_ready or module is None:
            self._failure = env.why_absent
            return
        port = _free_port()
        logs = cache_dir / "bench"
        block_bytes = block_mib * MIB
        batch_bytes = num_blocks * block_bytes

        def start(role: str, pool_bytes: int, segment_bytes: int) -> PeerProcess:
            settings = {
                "kind": "store",
                "master": f"127.0.0.1:{port}",
                "block_bytes": block_bytes,
                "pool_bytes": pool_bytes,
                "segment_bytes": segment_bytes,
            }
            process = PeerProcess(
                f"Mooncake store ({role})",
                env.python,
                module,
                settings,
                env=clean_env(GLOG_minloglevel="2", MC_LOG_LEVEL="ERROR"),
                log_path=logs / f"mooncake-store-{role}-{os.getpid()}.log",
            )
            return stack.enter_context(process)

        try:
            master = next((env.folder / "lib").glob(f"python*/site-packages/mooncake/{MASTER}"))
            stack.enter_context(_Master(master, port, logs / f"{MASTER}-{os.getpid()}.log"))
            self._server = start("memory", MIB, 6 * batch_bytes)
            self._client = start("client", batch_bytes, 0)
        except (VariantError, StopIteration, OSError) as error:
            self._failure = f"Mooncake's store: {error or type(error).__name__}"

    def put_get(self) -> tuple[float, float, float]:
        """Seconds of a put and of a get, and CPU seconds of both; VariantError when it cannot."""
        if self._failure:
            raise VariantError(self._failure)
        before_s = float(self._server.call("cpu_s"))
        found = self._client.call("put_get", num_blocks=self._num_blocks)
        cpu_s = float(self._server.call("cpu_s")) - before_s + found["cpu_s"]
        return found["put_s"], found["get_s"], cpu_s


class _Master:
    """The store's master process."""

    def __init__(self, binary: Path, port: int, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [f"-rpc_port={port}", "-metrics_port=0", f"-default_kv_lease_ttl={LEASE_MS}"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(binary), *arguments], stdout=out, stderr=out, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
