"""Runs at the start of a service process of a test and wraps a few functions of the product.

The test steers it by files in the folder that TEST_SEAMS names (see tests/support/seams.py):
`hold` makes the next request that comes to a stage wait there; `slow`, `unreadable`, `slow link`,
`cut link` and `disk` with the name of a process behind a dot make that one crawl, be read by
nobody, read slowly or not at all from others, or lose its disk. The product knows nothing of this:
what is not there cannot be switched on by mistake.
"""

import asyncio
import errno
import importlib.abc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_S = 0.005
SLOW_BYTES_PER_S = 1e6
MOST_S = 30.0
"""A hold that the test forgot ends by itself."""
FOLDER = Path(os.environ.get("TEST_SEAMS", ""))
ME = os.environ.get("MOONPOOL_INSTANCE_ID", "")
Function = Callable[..., Any]


def reached(stage: str, handle: str, **details: str) -> bool:
    """Says that a request is at the stage that the test waits for; True for the first only."""
    try:
        if (FOLDER / "hold").read_text() != stage:
            return False
        taken = os.open(FOLDER / "taken", os.O_CREAT | os.O_EXCL)
    except OSError:
        return False
    os.close(taken)
    said = {"stage": stage, "instance": ME, "handle": handle, **details}
    (FOLDER / "reached.new").write_text(json.dumps(said))
    (FOLDER / "reached.new").rename(FOLDER / "reached")
    return True


def is_held(until_s: float) -> bool:
    return (FOLDER / "hold").exists() and time.monotonic() < until_s


async def hold(stage: str, handle: str, **details: str) -> None:
    if reached(stage, handle, **details):
        until_s = time.monotonic() + MOST_S
        while is_held(until_s):  # noqa: ASYNC110  (a file is waited for)
            await asyncio.sleep(LOOK_S)


def has_flag(name: str) -> bool:
    return (FOLDER / f"{name}.{ME}").exists()


# --- what is wrapped, by module ------------------------------------------------------------------
def in_prefill_work(module: Any) -> None:
    original = module.PrefillWork._compute

    async def compute(self: Any, job: Any, run: Any) -> Any:
        await hold("queued", job.handle, decode=run.decode.id)
        return await original(self, job, run)

    module.PrefillWork._compute = compute


def in_prefill_pass(module: Any) -> None:
    original = module.PrefillPass._compute_chunk

    async def compute_chunk(self: Any, chunk: Any) -> None:
        await original(self, chunk)
        await hold("computing", self._job.handle, decode=self._job.run.result().decode.id)

    module.PrefillPass._compute_chunk = compute_chunk


def in_prefill_engine(module: Any) -> None:
    original = module.PrefillEngine.prefill_chunk

    def prefill_chunk(self: Any, *arguments: Any, **named: Any) -> Any:
        started_s = time.monotonic()
        found = original(self, *arguments, **named)
        if has_flag("slow"):
            time.sleep(1.5 + 19 * (time.monotonic() - started_s))
        return found

    module.PrefillEngine.prefill_chunk = prefill_chunk


def in_stripes(module: Any) -> None:
    original = module.Stripes._read

    async def read(self: Any, holder: Any, window: Any) -> int:
        await hold("fetching", self._target.handle, source=holder.node.id)
        return await original(self, holder, window)

    module.Stripes._read = read


def in_kv_intake(module: Any) -> None:
    original = module.KvIntake._pull

    async def pull(self: Any, node: Any, items: Any) -> None:
        if items:
            await hold("streaming", self._handle, prefill=self._run.prefill.id)
        await original(self, node, items)

    module.KvIntake._pull = pull


def in_decode_batch(module: Any) -> None:
    compute_step, with_room = module.DecodeBatch._compute_step, module.DecodeBatch._with_room

    def step(self: Any, sequences: Any) -> Any:
        found = [one.handle for one in sequences if one.num_answered >= 2]
        if found and reached("decoding", found[0]):
            until_s = time.monotonic() + MOST_S
            while is_held(until_s):
                time.sleep(LOOK_S)
        return compute_step(self, sequences)

    async def room(self: Any) -> Any:
        found = [one.handle for one in self._sequences.values() if one.num_answered >= 2]
        if found:
            await hold("between tokens", found[0])
        return await with_room(self)

    module.DecodeBatch._compute_step, module.DecodeBatch._with_room = step, room


def in_router(module: Any) -> None:
    original = module.Router.fetch

    async def fetch(self: Any, peer: Any, slices: Any, **named: Any) -> Any:
        if has_flag("cut link") or (FOLDER / f"unreadable.{peer.node}").exists():
            raise module.PeerLost(f"node {peer.node}: the link is cut")
        if has_flag("slow link"):
            await asyncio.sleep(sum(part.num_bytes for part in slices) / SLOW_BYTES_PER_S)
        return await original(self, peer, slices, **named)

    module.Router.fetch = fetch


def in_ssd_files(module: Any) -> None:
    """The file of a disk that fails: each call has the error that the flag names."""

    class Os:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def pwritev(self, *arguments: Any) -> int:
            fail("write")
            return os.pwritev(*arguments)

        def pwrite(self, *arguments: Any) -> int:
            fail("write")
            return os.pwrite(*arguments)

        def preadv(self, *arguments: Any) -> int:
            fail("read")
            return os.preadv(*arguments)

    def fail(what: str) -> None:
        try:
            wanted = (FOLDER / f"disk.{ME}").read_text().split()
        except OSError:
            return
        if what in wanted[1:]:
            raise OSError(getattr(errno, wanted[0]), os.strerror(getattr(errno, wanted[0])))

    module.os = Os()


WRAPPERS: dict[str, Callable[[Any], None]] = {
    "shared.worker.prefill_work": in_prefill_work,
    "shared.worker.prefill_pass": in_prefill_pass,
    "shared.engine.prefill": in_prefill_engine,
    "shared.worker.kv_intake": in_kv_intake,
    "shared.worker.decode_batch": in_decode_batch,
    "services.transfer.stripes": in_stripes,
    "services.transfer.ssd_files": in_ssd_files,
    "shared.transport.router": in_router,
}


class Finder(importlib.abc.MetaPathFinder):
    """Wraps a module once it has been executed, by whatever finds it otherwise."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        wrap = WRAPPERS.pop(name, None)
        if wrap is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FOLDER.name:
    sys.meta_path.insert(0, Finder())
