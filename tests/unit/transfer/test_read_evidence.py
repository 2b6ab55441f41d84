"""Which reads count against the node that was read, and which say nothing of it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from services.transfer.read_evidence import BASE_S, BYTES_PER_S, MIN_TRIED_S, ReadEvidence
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.outcomes import MAX_ITEMS, Outcomes
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.runtime.outcome_reporter import OutcomeReporter
from shared.transport.base import PeerLost
from tests.support.deadline import until

NODE = NodeRef(id="n", incarnation="1")


class Bus:
    def __init__(self) -> None:
        self.sent: list[Outcomes] = []

    async def publish(self, _subject: str, message: Outcomes) -> None:
        self.sent.append(message)


def reporter() -> OutcomeReporter:
    return OutcomeReporter(Bus(), "me")  # type: ignore[arg-type]


def waiting(reporter: OutcomeReporter) -> Sequence[Any]:
    return reporter._waiting


@pytest.mark.parametrize(
    ("error", "tried_s", "counts"),
    [
        (PeerLost("cut"), 0.1, True),
        (ServiceError(ErrorCode.INTERNAL, "broken"), 0.1, True),
        (TimeoutError(), MIN_TRIED_S, True),
        (BusTimeout("lease", 2.0), 2.0, True),
        (TimeoutError(), 0.5, False),
        (BusTimeout("lease", 0.2), 0.2, False),
        (NoResponder("lease"), 0.1, False),
        (ServiceError(ErrorCode.VOID_INCARNATION, "started anew"), 0.1, False),
        (ServiceError(ErrorCode.PEER_LOST, "is another incarnation"), 0.1, False),
        (ServiceError(ErrorCode.FORMAT_MISMATCH, "another model"), 0.1, False),
        (ServiceError(ErrorCode.KV_LOST, "in another use"), 0.1, False),
    ],
)
def test_what_a_failed_read_says(error: Exception, tried_s: float, counts: bool) -> None:
    told = reporter()
    ReadEvidence(told).bad(NODE, error, tried_s)
    assert [item.is_good for item in waiting(told)] == [False] * counts


def test_a_good_read_says_how_long_its_bytes_took() -> None:
    told = reporter()
    ReadEvidence(told).good(NODE, 0.5, int(BYTES_PER_S))
    ReadEvidence(told).good(NODE, 0.5, 0)
    timed, untimed = waiting(told)
    assert (timed.service, timed.id, timed.incarnation) == ("transfer", "n", "1")
    assert (timed.took_s, timed.expected_s) == (0.5, pytest.approx(1.0 + BASE_S))
    assert untimed.expected_s == 0.0


def test_without_a_reporter_nothing_is_told() -> None:
    ReadEvidence().bad(NODE, PeerLost("cut"), 1.0)
    ReadEvidence().good(NODE, 1.0, 1)


async def test_what_was_seen_is_told_together_and_bounded() -> None:
    bus = Bus()
    told = OutcomeReporter(bus, "me")  # type: ignore[arg-type]
    for _ in range(MAX_ITEMS + 5):
        told.note("prefill", "p", "1", is_good=False, took_s=-1.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(told.run())
        await until(lambda: bus.sent, what="it is told")
        task.cancel()
    (message,) = bus.sent
    assert (message.witness, len(message.items)) == ("me", MAX_ITEMS)
    assert message.items[0].took_s == 0.0
    assert not waiting(told)
