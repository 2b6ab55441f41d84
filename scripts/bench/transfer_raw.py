"""Bytes from one process' slots to another's: beside memcpy, and beside Mooncake's engine.

Every variant moves scattered blocks of one size; all run in turn, so that what else the machine
does hits them alike.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.bars import Bar, judged, not_measured
from scripts.bench.fleet import ROOT
from scripts.bench.interleave import Series, VariantError, paired_ratio, run_interleaved
from scripts.bench.peer_process import PeerProcess, clean_env
from scripts.bench.peers import PEERS, environment

MIB = 1 << 20
SIDE = Path(__file__).with_name("transfer_side.py")
RAW_GOAL, HASHED_GOAL = 0.95, 0.9
TCP_GOAL, CPU_GOAL = 1.7, 0.6
HASHED_TCP_GOAL = 0.9 * TCP_GOAL
"""With the check of what arrives, which Mooncake's engine does not do."""
OnRun = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RawOptions:
    folder: Path
    """On the tmpfs."""
    cache_dir: Path
    block_mib: tuple[int, ...] = (1, 16, 64)
    pool_mib: int = 512
    moved_mib: int = 256
    """Of one call; the largest blocks are rounded up."""
    rounds: int = 5


@dataclass(slots=True)
class Variant:
    """One way to move the blocks, and what it cost."""

    name: str
    num_bytes: int
    seconds: Series
    cpu_s: list[float] = field(default_factory=list)

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds.median / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        ordered = sorted(self.cpu_s)
        return ordered[len(ordered) // 2] / self.num_bytes * 1e9

    def as_json(self) -> dict[str, Any]:
        shown = {"name": self.name, **self.seconds.as_json()}
        if self.seconds.values:
            shown |= {"gb_per_s": self.gb_per_s, "cpu_s_per_gb": self.cpu_s_per_gb}
        return shown


@dataclass(slots=True)
class RawReport:
    bars: list[Bar] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    copier: str = ""


def measure_raw(options: RawOptions, on_run: OnRun) -> RawReport:
    report = RawReport()
    for block_mib in options.block_mib:
        with ExitStack() as stack:
            group = _Group(options, block_mib, stack, on_run)
            report.copier = group.copier
            found = group.run()
        report.variants += found.values()
        report.bars += _bars(found, block_mib)
    return report


class _Group:
    """All variants of one block size, with their processes."""

    def __init__(
        self, options: RawOptions, block_mib: int, stack: ExitStack, on_run: OnRun
    ) -> None:
        self._options = options
        self._block_mib = block_mib
        self._stack = stack
        self._on_run = on_run
        self._num_blocks = max(1, options.moved_mib // block_mib)
        self._num_bytes = self._num_blocks * block_mib * MIB
        self._cpu_s: dict[str, list[float]] = {}
        self._source = self._side("source")
        self._sink = self._side("sink")
        self._sink.call("connect", other=self._source.description)
        self.copier = str(self._sink.description["copier"])
        self._variants: dict[str, Callable[[], float]] = {
            "memcpy": self._ours("memcpy"),
            "local": self._ours("read", transport="local"),
            "local + xxh3": self._ours("read", transport="local", with_digests=True),
            "local, 2 threads": self._ours("read", transport="local", threads=2),
            "local, 2 threads + xxh3": self._ours(
                "read", transport="local", threads=2, with_digests=True
            ),
            "loopback": self._ours("loopback"),
            "tcp": self._ours("read", transport="tcp"),
            "tcp + xxh3": self._ours("read", transport="tcp", with_digests=True),
        }
        self._add_mooncake()

    def run(self) -> dict[str, Variant]:
        for variant in self._variants.values():
            try:
                variant()  # warm: connections are there and pages are touched
            except VariantError:
                continue
        for values in self._cpu_s.values():
            values.clear()
        found = run_interleaved(
            self._variants,
            rounds=self._options.rounds,
            on_run=lambda name, number: self._on_run(
                f"{self._block_mib} MiB: {name}, round {number + 1} of {self._options.rounds}"
            ),
        )
        return {
            name: Variant(
                f"{self._block_mib} MiB {name}", self._num_bytes, series, self._cpu_s.get(name, [])
            )
            for name, series in found.items()
        }

    def _side(self, name: str) -> PeerProcess:
        options = self._options
        settings = {
            "folder": str(options.folder),
            "name": f"{name}-{self._block_mib}",
            "pool_bytes": options.pool_mib * MIB,
            "block_bytes": self._block_mib * MIB,
            "cache_dir": str(options.cache_dir),
        }
        return self._stack.enter_context(
            PeerProcess(
                f"moonpool {name}",
                Path(sys.executable),
                SIDE,
                settings,
                env=clean_env(PYTHONPATH=str(ROOT)),
                log_path=options.cache_dir / "bench" / f"transfer-{name}-{os.getpid()}.log",
            )
        )

    def _ours(self, operation: str, **arguments: Any) -> Callable[[], float]:
        name = _name_of(operation, arguments)

        def run() -> float:
            return self._timed(
                name,
                self._source,
                lambda: self._sink.call(operation, num_blocks=self._num_blocks, **arguments),
            )

        return run

    def _timed(self, name: str, other: PeerProcess, call: Callable[[], Any]) -> float:
        """CPU of both processes counts."""
        before_s = float(other.call("cpu_s"))
        found = call()
        cpu_s = float(found["cpu_s"]) + float(other.call("cpu_s")) - before_s
        self._cpu_s.setdefault(name, []).append(cpu_s)
        return float(found["seconds"])

    def _add_mooncake(self) -> None:
        env = environment("mooncake", self._options.cache_dir)
        names = {"Mooncake read": False, "Mooncake write": True}
        if not env.is_ready or env.peer.module is None:
            self._variants |= dict.fromkeys(names, lambda: _absent(env.why_absent))
            return
        module = env.peer.module

        def start(role: str) -> PeerProcess:
            settings = {
                "kind": "engine",
                "pool_bytes": self._options.pool_mib * MIB,
                "block_bytes": self._block_mib * MIB,
            }
            return PeerProcess(
                f"{PEERS['mooncake'].title} ({role})",
                env.python,
                module,
                settings,
                env=clean_env(MC_LOG_LEVEL="ERROR", GLOG_minloglevel="2"),
                log_path=self._options.cache_dir / "bench" / f"mooncake-{role}-{os.getpid()}.log",
            )

        try:
            target = self._stack.enter_context(start("target"))
            caller = self._stack.enter_context(start("caller"))
        except VariantError as error:
            why = str(error)
            self._variants |= dict.fromkeys(names, lambda: _absent(why))
            return
        for name, is_write in names.items():
            self._variants[name] = self._mooncake(name, target, caller, is_write)

    def _mooncake(
        self, name: str, target: PeerProcess, caller: PeerProcess, is_write: bool
    ) -> Callable[[], float]:
        def run() -> float:
            return self._timed(
                name,
                target,
                lambda: caller.call(
                    "move",
                    other=target.description,
                    num_blocks=self._num_blocks,
                    is_write=is_write,
                ),
            )

        return run


def _name_of(operation: str, arguments: dict[str, Any]) -> str:
    if operation != "read":
        return operation
    threads = ", 2 threads" if arguments.get("threads") == 2 else ""
    hashed = " + xxh3" if arguments.get("with_digests") else ""
    return f"{arguments['transport']}{threads}{hashed}"


def _absent(why: str) -> float:
    raise VariantError(why)


def _bars(found: dict[str, Variant], block_mib: int) -> list[Bar]:
    bars = [
        _speed(found, f"{block_mib} MiB local / memcpy", "local", "memcpy", RAW_GOAL),
        _speed(
            found, f"{block_mib} MiB local + xxh3 / memcpy", "local + xxh3", "memcpy", HASHED_GOAL
        ),
    ]
    for direction in ("read", "write"):
        other = f"Mooncake {direction}"
        bars.append(_speed(found, f"{block_mib} MiB tcp / {other}", "tcp", other, TCP_GOAL))
        name = f"{block_mib} MiB tcp + xxh3 / {other}"
        bars.append(_speed(found, name, "tcp + xxh3", other, HASHED_TCP_GOAL))
        ours, theirs = found["tcp + xxh3"], found[other]
        if theirs.seconds.failure or ours.seconds.failure:
            why = theirs.seconds.failure or ours.seconds.failure
            bars.append(not_measured(f"{name}, CPU", "<=", CPU_GOAL, "x", why=why))
        else:
            bars.append(
                judged(
                    f"{name}, CPU",
                    ours.cpu_s_per_gb / theirs.cpu_s_per_gb,
                    "<=",
                    CPU_GOAL,
                    "x",
                    note=f"{ours.cpu_s_per_gb:.3f} and {theirs.cpu_s_per_gb:.3f} CPU s/GB",
                )
            )
    return bars


def _speed(found: dict[str, Variant], name: str, ours: str, other: str, goal: float) -> Bar:
    first, second = found[ours], found[other]
    why = first.seconds.failure or second.seconds.failure
    if why:
        return not_measured(name, ">=", goal, "x", why=why)
    ratio = paired_ratio(second.seconds, first.seconds)
    note = f"{first.gb_per_s:.2f} and {second.gb_per_s:.2f} GB/s"
    return judged(name, ratio, ">=", goal, "x", note=note)
