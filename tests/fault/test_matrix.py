"""Every service killed, stopped and drained at every stage of a request, under 20 streams."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.cluster import HostedCluster, dummy_options
from tests.support.fault_bench import NUM_USERS, Fault, FaultBench, make_bench
from tests.support.seams import STAGES, Held, Seams, Stage

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]
STOP_S = 4.0
"""Longer than a lease."""
MOST_GAP_S = 2.0
"""Beyond the time to compute anew."""
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
TARGETS = (
    "gateway",
    "conductor",
    "cache-index",
    "prefill",
    "decode",
    "transfer",
    "other transfer",
    "NATS",
    "Redis",
)
ROOMY = {"decode": {"MOONPOOL_MAX_BATCH": "32"}}
"""One of two decode instances can take all users."""


@dataclass(frozen=True, slots=True)
class Case:
    fault: str
    target: str
    stage: Stage

    def __str__(self) -> str:
        return f"{self.fault} of {self.target} while {self.stage}"

    @property
    def may_fail(self) -> bool:
        """Streams of a gateway that is killed end with it: nobody else has its connections."""
        return self.target == "gateway" and self.fault == "SIGKILL"


CASES = [Case(fault, target, stage) for stage in STAGES for fault in SIGNALS for target in TARGETS]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultBench]:
    """One cluster for all: each case leaves it as it found it, which the next one proves."""
    folder = tmp_path_factory.mktemp("seams")
    environment = Seams(folder).environment
    extra = {name: own | ROOMY.get(name, {}) for name, own in environment.items()}
    options = dummy_options(
        gateways=2, conductors=2, cache_indexes=2, decode_tokens=40_000, extra_env=extra
    )
    with HostedCluster(options) as cluster:
        yield make_bench(cluster, folder)


def process_of(target: str, held: Held) -> str:
    names = {
        "prefill": held.prefill,
        "decode": held.decode,
        "transfer": held.node,
        "other transfer": held.other_node,
        "NATS": "nats",
        "Redis": "redis",
    }
    return names.get(target, f"{target}-1")


def fault_of(case: Case) -> Fault:
    async def do(bench: FaultBench, held: Held) -> None:
        name = process_of(case.target, held)
        await asyncio.to_thread(bench.cluster.kill, name, SIGNALS[case.fault])
        if case.fault == "SIGSTOP":
            bench.seams.release()
            try:
                await asyncio.sleep(STOP_S)
            finally:
                await asyncio.to_thread(bench.cluster.resume, name)

    return do


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_answers_stay_right_and_all_is_given_back(
    bench: FaultBench, case: Case, record_property: Callable[[str, object], None]
) -> None:
    row = await bench.row(case.fault, case.target, case.stage, fault_of(case))
    record_property("fault", row.as_json())
    assert row.wrong == row.hangs == 0, row
    assert not row.leaks, row
    if case.may_fail:
        # Each user may have had one stream there; whoever asks next waits for the next process.
        assert row.kinds.get("cut", 0) == row.errors <= NUM_USERS, row
    else:
        assert row.errors == 0, row
    assert row.answers >= 20
    if case.fault == "SIGKILL" and case.target in ("prefill", "decode"):
        # What is recomputed waits in the same queues as the prompts of the others.
        assert row.gap_s <= MOST_GAP_S + row.first_s, row
