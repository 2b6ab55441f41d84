"""Every subject has users, and nobody has more than its service does."""

import pytest

from shared.messages import subjects
from shared.messages.access import ACCESS, SERVICES, covers
from tests.support.all_subjects import all_subjects

OPERATOR_ASKS = {
    "CONDUCTOR_CHANGE_REPLICA",
    "CONDUCTOR_STATE",
    "INDEX_HOLDERS",
    "INDEX_HOT",
    "INDEX_STATS",
    "contents",
    "prints",
    "stats",
    "gateway_bill",
    "role",
    "pin",
    "flush",
    "drain",
}
OPERATOR_HEARS = {"trace"}


@pytest.mark.parametrize(("name", "subject"), list(all_subjects()))
def test_every_subject_has_somebody_who_sends_and_somebody_who_hears(
    name: str, subject: str
) -> None:
    senders = [who for who in SERVICES if may(ACCESS[who].publish, subject)]
    hearers = [who for who in SERVICES if may(ACCESS[who].subscribe, subject)]
    asked_by_operator = name in OPERATOR_ASKS or subject.rpartition(".")[2] in OPERATOR_ASKS
    assert senders or asked_by_operator, f"nobody may send {subject}: see access.py"
    assert hearers or name in OPERATOR_HEARS, f"nobody may hear {subject}: see access.py"


def may(patterns: tuple[str, ...], subject: str) -> bool:
    return any(covers(pattern, subject) for pattern in patterns)


@pytest.mark.parametrize(
    ("who", "subject"),
    [
        ("gateway", subjects.index_events("node-1")),
        ("gateway", subjects.report("prefill", "prefill-1")),
        ("gateway", subjects.transfer("node-1", "lease")),
        ("conductor", subjects.index_events("node-1")),
        ("conductor", subjects.instance("prefill", "prefill-1", "run")),
        ("prefill", subjects.index_events("node-1")),
        ("prefill", subjects.CONDUCTOR_PLACE),
        ("decode", subjects.report("transfer", "node-1")),
        ("gateway", subjects.instance("prefill", "prefill-1", "role")),
        ("transfer", subjects.gateway_tokens("g", "r", 0)),
        ("cache-index", subjects.FINISHED_BILLS),
    ],
)
def test_a_service_may_not_send_what_is_anothers(who: str, subject: str) -> None:
    assert not may(ACCESS[who].publish, subject)


def test_only_the_service_itself_hears_its_answers() -> None:
    for who in SERVICES:
        hearers = [
            other for other in SERVICES if may(ACCESS[other].subscribe, f"{subjects.inbox(who)}.x")
        ]
        assert hearers == [who]


@pytest.mark.parametrize(
    ("pattern", "subject", "is_covered"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.>", False),
        ("a.b", "a.*", False),
        ("a.*", "a.*", True),
        (">", "a.b", True),
    ],
)
def test_a_pattern_covers_what_it_matches(pattern: str, subject: str, is_covered: bool) -> None:
    assert covers(pattern, subject) is is_covered
