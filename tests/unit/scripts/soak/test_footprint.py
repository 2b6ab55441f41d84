"""What a process has too much of; which faults a seed brings."""

import os
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.launcher.errors import LaunchError
from scripts.soak.breaking import SIGNALS, STOPPED_S, next_plan
from scripts.soak.footprint import (
    SLACK_BYTES,
    SLACK_DESCRIPTORS,
    SLACK_THREADS,
    Footprint,
    footprint_of,
    footprints,
    grown,
)

BEFORE = Footprint(20, 5, 100 << 20)


def test_what_comes_and_goes_is_no_growth() -> None:
    now = Footprint(20 + SLACK_DESCRIPTORS, 5 + SLACK_THREADS, (100 << 20) + SLACK_BYTES)
    assert now.exceeds(BEFORE) == []
    assert Footprint(1, 1, 0).exceeds(BEFORE) == []


def test_growth_names_the_process_and_what_it_is() -> None:
    now = Footprint(25 + SLACK_DESCRIPTORS, 8 + SLACK_THREADS, 200 << 20)
    assert grown({"node-1": BEFORE}, {"node-1": now}) == [
        "node-1: 29 descriptors, 20 before",
        "node-1: 12 threads, 5 before",
        "node-1: 200 MB, 100 before",
    ]


def test_a_process_is_seen_as_it_is() -> None:
    before = footprint_of(os.getpid())
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    try:
        assert footprint_of(os.getpid()).descriptors == before.descriptors + 10
    finally:
        for file in files:
            os.close(file)


def test_a_seed_brings_the_same_faults_again() -> None:
    first, second = random.Random(3), random.Random(3)
    plans = [next_plan(first, ["a", "b"], 2.0) for _ in range(60)]
    assert plans == [next_plan(second, ["a", "b"], 2.0) for _ in range(60)]
    assert {plan.process for plan in plans} == {"a", "b"}
    assert {plan.signal for plan in plans} == set(SIGNALS)
    for plan in plans:
        assert 1.0 <= plan.wait_s <= 3.0
        is_stopped = plan.signal == "SIGSTOP"
        assert (STOPPED_S[0] <= plan.stopped_s <= STOPPED_S[1]) is is_stopped


def test_a_process_that_has_just_ended_is_not_there() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    cluster: Any = SimpleNamespace(process=lambda _: SimpleNamespace(pid=ended.pid))
    with pytest.raises(LaunchError, match="not there"):
        footprints(cluster, ["prefill-1"])
