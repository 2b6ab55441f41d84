"""A measuring process and how it is asked: see peer_lines. Knows no engine."""

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.bench.interleave import VariantError

MAIN = Path(__file__).with_name("peer_lines.py")
LOAD_TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 300.0
END_TIMEOUT_S = 5.0
TAIL_CHARACTERS = 600


class PeerError(VariantError):
    """A measuring process could not do what it was asked, or is gone."""


class PeerProcess:
    """`with PeerProcess(...) as peer: peer.call("prefill", num_tokens=2048)`."""

    def __init__(
        self,
        name: str,
        python: Path,
        module: Path,
        settings: Mapping[str, Any],
        *,
        env: Mapping[str, str],
        log_path: Path,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._log_path = log_path
        self._answers: queue.Queue[str] = queue.Queue()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-P", str(MAIN), str(module), json.dumps(dict(settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(env),
                text=True,
                start_new_session=True,  # Ctrl-C in the terminal is for the bench alone
            )
        self._reader = threading.Thread(target=self._read, name=f"peer-{name}", daemon=True)
        self._reader.start()
        try:
            self.description: Any = self._answer(load_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, operation: str, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """The result of one operation."""
        assert self._process.stdin is not None
        line = json.dumps({"op": operation, "arguments": arguments})
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise PeerError(self._gone()) from None
        return self._answer(timeout_s)

    def close(self) -> None:
        """End the process; it is gone when this returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_TIMEOUT_S)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, timeout_s: float) -> Any:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            # An answer that comes later would be taken for that of another request.
            self._process.kill()
            raise PeerError(f"{self.name}: no answer within {timeout_s:g} s") from None
        if not line:
            self._answers.put("")
            raise PeerError(self._gone())
        try:
            answer = json.loads(line)
            if answer["ok"]:
                return answer["result"]
            problem = str(answer["error"])
        except (ValueError, KeyError, TypeError):
            problem = f"an answer that cannot be read: {line[:200]!r}"
        raise PeerError(f"{self.name}: {problem}")

    def _gone(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        tail = self._log_path.read_text(errors="replace").strip()[-TAIL_CHARACTERS:]
        return f"{self.name}: its process ended (code {self._process.returncode}); {tail}"


def clean_env(**more: str) -> dict[str, str]:
    """This process's environment without what would mix our packages into a peer's."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden} | more
