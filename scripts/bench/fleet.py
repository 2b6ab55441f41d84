"""The measuring processes of one bench: ours and the peers', started when first asked for."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import scripts
from scripts.bench.interleave import VariantError
from scripts.bench.peer_process import PeerProcess, clean_env
from scripts.bench.peers import PEERS, environment

ROOT = Path(scripts.__file__).parents[1]
ENGINE_WORKER = Path(__file__).with_name("engine_worker.py")
EXPORT_TIMEOUT_S = 300.0
VLLM_LOAD_TIMEOUT_S = 420.0
WARM_UP_TOKENS = 256
OURS = "moonpool"
MALLOC_BYTES = str(256 << 20)


@dataclass(slots=True)
class Fleet:
    """`with Fleet(...) as fleet: fleet.call("hf", "bfloat16", "prefill", num_tokens=2048)`."""

    model: str
    fingerprint: str
    max_positions: int
    threads: int
    cache_dir: Path
    _running: dict[tuple[str, str, int], PeerProcess] = field(default_factory=dict)
    _absent: dict[tuple[str, str, int], str] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        return {key[0]: peer.description["version"] for key, peer in self._running.items()}

    def call(
        self, name: str, dtype: str, operation: str, *, threads: int | None = None, **arguments: Any
    ) -> Any:
        """Raises VariantError when there is no such process or it cannot do that."""
        return self.process(name, dtype, threads=threads).call(operation, **arguments)

    def process(self, name: str, dtype: str, *, threads: int | None = None) -> PeerProcess:
        key = (name, dtype, threads or self.threads)
        if key in self._absent:
            raise VariantError(self._absent[key])
        if key not in self._running:
            try:
                process = self.start(name, dtype, threads=threads)
                self._running[key] = process
                process.call("prefill", num_tokens=min(WARM_UP_TOKENS, self.max_positions))
            except VariantError as error:
                self._absent[key] = str(error)
                raise
        return self._running[key]

    def start(self, name: str, dtype: str, *, threads: int | None = None) -> PeerProcess:
        """A new process, which the caller closes."""
        threads = threads or self.threads
        if name == OURS:
            return self._start_ours(dtype, threads)
        env = environment(name, self.cache_dir)
        module = env.peer.module
        if not env.is_ready or module is None:
            raise VariantError(env.why_absent)
        settings: dict[str, Any] = {
            "dtype": dtype, "threads": threads, "max_tokens": self.max_positions
        }  # fmt: skip
        kind = "gguf" if name == "llamacpp" else "hf"
        settings["file" if kind == "gguf" else "folder"] = str(self._exported(kind, dtype))
        return PeerProcess(
            PEERS[name].title,
            env.python,
            module,
            settings,
            env=_environment_of(threads),
            log_path=self._log_path(name, dtype),
            load_timeout_s=VLLM_LOAD_TIMEOUT_S,
        )

    def close(self) -> None:
        """End all processes; the next call starts them anew."""
        while self._running:
            self._running.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start_ours(self, dtype: str, threads: int) -> PeerProcess:
        return PeerProcess(
            OURS,
            Path(sys.executable),
            ENGINE_WORKER,
            {
                "model": self.model,
                "dtype": dtype,
                "threads": threads,
                "cache_dir": str(self.cache_dir),
                "pool_tokens": self.max_positions,
            },
            env=_environment_of(threads) | {"PYTHONPATH": str(ROOT)},
            log_path=self._log_path(OURS, dtype),
        )

    def _log_path(self, name: str, dtype: str) -> Path:
        return self.cache_dir / "bench" / f"{name}-{dtype}-{os.getpid()}.log"

    def _exported(self, kind: str, dtype: str) -> Path:
        """The model in the form that a peer reads, made at first use."""
        suffix = ".gguf" if kind == "gguf" else ""
        path = self.cache_dir / "exports" / f"{self.fingerprint}-{dtype}-{kind}{suffix}"
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-P", "-m", "scripts.bench.export_model", self.model, str(path)]
        try:
            done = subprocess.run(
                [*argv, "--format", kind, "--dtype", dtype],
                capture_output=True,
                text=True,
                timeout=EXPORT_TIMEOUT_S,
                env=clean_env(PYTHONPATH=str(ROOT)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise VariantError(f"{kind} export took over {EXPORT_TIMEOUT_S:g} s") from None
        if done.returncode:
            last = (done.stderr.strip() or "no output").splitlines()[-1]
            raise VariantError(f"{kind} export failed: {last}")
        return path


def _environment_of(threads: int) -> dict[str, str]:
    """The same for all: none alone has well-set threads and a well-set allocator."""
    return clean_env(
        OMP_NUM_THREADS=str(threads),
        # Threads that spin while they wait make an engine many times slower on a busy machine.
        OMP_WAIT_POLICY="PASSIVE",
        MALLOC_MMAP_THRESHOLD_=MALLOC_BYTES,
        MALLOC_TRIM_THRESHOLD_=MALLOC_BYTES,
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_OFFLINE="1",
        DO_NOT_TRACK="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
