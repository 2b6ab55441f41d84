"""How commands find a cluster that `up` runs on this machine: one small private file each."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from shared.runtime.nats_access import NatsAccess
from shared.runtime.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster and the keys to it."""

    pid: int
    started_s: float
    """When that process started: a pid alone may have been given to another."""
    base_url: str
    nats_url: str
    admin_key: str
    run_dir: str
    nats_user: str | None = None
    nats_password: str | None = None
    nats_ca: str | None = None

    @property
    def nats_access(self) -> NatsAccess:
        tls = None if self.nats_ca is None else TlsFiles(Path(self.nats_ca))
        return NatsAccess(self.nats_user, self.nats_password, tls)


def state_dir() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path.home() / ".cache"
    return base / "moonpool" / "clusters"


def describe(
    *, base_url: str, nats_url: str, admin_key: str, run_dir: Path, nats_access: NatsAccess
) -> RunningCluster:
    """The state of a cluster that this very process runs."""
    pid = os.getpid()
    started_s = psutil.Process(pid).create_time()
    return RunningCluster(
        pid,
        started_s,
        base_url,
        nats_url,
        admin_key,
        str(run_dir),
        nats_access.user,
        nats_access.password,
        None if nats_access.tls is None else str(nats_access.tls.ca),
    )


def path_of(pid: int) -> Path:
    return state_dir() / f"{pid}.json"


def write(state: RunningCluster) -> Path:
    """Make the cluster known; only this user can read the file."""
    folder = state_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = path_of(state.pid)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(state), file)
    return path


def find_running() -> list[RunningCluster]:
    """Clusters that run now, the latest first. Files of dead ones are ignored and removed."""
    found = []
    for path in state_dir().glob("*.json"):
        try:
            state = RunningCluster(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if _is_alive(state):
            found.append(state)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda state: -state.started_s)


def _is_alive(state: RunningCluster) -> bool:
    try:
        return abs(psutil.Process(state.pid).create_time() - state.started_s) < 0.1
    except psutil.Error:
        return False
