"""The test suite in groups, each as parallel as it may be; a recap at the end."""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USAGE = """scripts/test [--all] [GROUP]... [pytest arguments]

Run the test suite. Groups: {groups}; without one, all of them. --all adds the slow tests.
Examples: scripts/test; scripts/test unit -k slots; scripts/test fault -x; scripts/test --all"""
NOTHING_SELECTED = 5
MAX_AGAIN = 3
"""Failed tests of a group that CI runs once more, alone; more than that are no accident."""
MAX_WORKERS = 4
SHOW_SLOWEST = ("--durations=12", "--durations-min=10")


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that run together."""

    name: str
    folders: tuple[str, ...]
    max_workers: int
    """At once; a test with a cluster of its own is a dozen processes."""


GROUPS = (
    Group("unit", ("unit", "property", "contracts", "simulation", "architecture"), MAX_WORKERS),
    Group("integration", ("integration",), MAX_WORKERS),
    Group("e2e", ("e2e",), 2),
    Group("fault", ("fault",), 2),
    Group("browser", ("browser",), 1),
    Group("rdma", ("rdma",), 1),
    Group("compose", ("compose",), 1),
    Group("gpu", ("gpu",), 1),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one group."""

    name: str
    code: int
    counts: str
    seconds: float
    unsteady: tuple[str, ...] = ()
    """Tests that failed beside others and passed alone."""

    @property
    def is_good(self) -> bool:
        return self.code in (0, NOTHING_SELECTED)


def run_group(group: Group, *, is_all: bool, arguments: list[str]) -> Outcome | None:
    """Run one group; None when it has no tests."""
    folders = [ROOT / "tests" / folder for folder in group.folders]
    folders = [folder for folder in folders if any(folder.rglob("test_*.py"))]
    if not folders:
        return None
    workers = min(group.max_workers, max(2, len(os.sched_getaffinity(0))))
    marks = [] if is_all else ["-m", "not slow"]
    print(f"\n== {group.name}", file=sys.stderr, flush=True)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="moonpool-tests-") as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-P", "-m", "pytest", "-q", "-o", f"cache_dir={folder}/cache"]
        # One worker is this process: another one would only take its time to start.
        spread = (
            ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
            if workers > 1
            else []
        )
        command = [*pytest, *spread, *SHOW_SLOWEST, f"--junitxml={report}"]
        rest = [*marks, *arguments, *map(str, folders)]
        code = subprocess.run([*command, *rest], cwd=ROOT, check=False).returncode
        counts, unsteady = counts_of(report), tuple[str, ...]()
        failed = failed_in(report)
        if code == 1 and os.environ.get("CI") and len(failed) <= MAX_AGAIN:
            print(f"\n== {group.name}: what failed, alone", file=sys.stderr, flush=True)
            again = [*pytest, "--last-failed", "--last-failed-no-failures=none", *rest]
            code = subprocess.run(again, cwd=ROOT, check=False).returncode
            unsteady = failed if code == 0 else ()
    return Outcome(group.name, code, counts, time.monotonic() - started_s, unsteady)


def failed_in(report: Path) -> tuple[str, ...]:
    """Names of the tests that failed or did not get to run."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return ()
    bad = [case for case in cases if {"failure", "error"} & {part.tag for part in case}]
    return tuple(sorted({f"{case.get('classname')}::{case.get('name')}" for case in bad}))


def counts_of(report: Path) -> str:
    """Passed, failed and skipped of a group in words."""
    try:
        suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError, StopIteration):
        return "no report"
    total, skipped = int(suite.get("tests", "0")), int(suite.get("skipped", "0"))
    failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    words = [f"{total - skipped - failed} passed"]
    words += [f"{failed} failed"] if failed else []
    words += [f"{skipped} skipped"] if skipped else []
    return ", ".join(words)


def main() -> None:
    names = [group.name for group in GROUPS]
    rest = sys.argv[1:]
    if rest[:1] in (["-h"], ["--help"]):
        print(USAGE.format(groups=", ".join(names)))
        return
    chosen = []
    while rest and (rest[0] in names or rest[0] == "--all"):
        chosen.append(rest.pop(0))
    is_all = "--all" in chosen
    groups = [name for name in chosen if name in names]
    started_s = time.monotonic()
    outcomes = []
    for group in GROUPS:
        if not groups or group.name in groups:
            outcome = run_group(group, is_all=is_all, arguments=rest)
            outcomes += [outcome] if outcome is not None else []
    print(f"\n== all in {time.monotonic() - started_s:.0f} s")
    for outcome in outcomes:
        verdict = "ok  " if outcome.is_good else "FAIL"
        print(f"{verdict} {outcome.name:<12} {outcome.counts} in {outcome.seconds:.0f} s")
        for name in outcome.unsteady:
            print(f"     unsteady: {name} failed beside others and passed alone; it needs mending")
    raise SystemExit(0 if outcomes and all(outcome.is_good for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
