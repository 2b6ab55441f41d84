"""Service processes of a test: started by module name, ended with the test."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from scripts.launcher.processes import PR_SET_PDEATHSIG
from shared.runtime.nats_access import NatsAccess
from tests.support.servers import _libc


def nats_variables(access: NatsAccess) -> dict[str, str]:
    """How a process of a test shows itself to the NATS of a cluster."""
    found = {
        "nats_user": access.user,
        "nats_password": access.password,
        "nats_ca": None if access.tls is None else str(access.tls.ca),
    }
    return {name: value for name, value in found.items() if value is not None}


class ServiceProcess:
    """`python -m services.<name>` with its output in a file."""

    def __init__(self, service: str, log: Path, **variables: object) -> None:
        self._argv = [sys.executable, "-P", "-m", f"services.{service}"]
        self._log = log
        self._environment = {
            **os.environ,
            **{f"MOONPOOL_{name.upper()}": str(value) for name, value in variables.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        return self

    def __exit__(self, *_error: object) -> None:
        self.end(signal.SIGTERM)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int | None:
        """Signal it and wait; the exit code."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
            raise AssertionError(f"did not end:\n{self.log()}") from None

    def log(self) -> str:
        return self._log.read_text()
