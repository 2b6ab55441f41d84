"""Who is kept out by what others saw, for how long, and how it comes back."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from shared.scheduling.effects import AnswerPlaced
from shared.scheduling.events import BillFinished, InstanceReported, OutcomeSeen
from shared.scheduling.journal import from_line
from shared.scheduling.quarantine import Outcome, Party, Quarantine, QuarantineRules
from tests.support.placing import Driven, instance, match, request

A: Party = ("prefill", "a", "a-1")
B: Party = ("prefill", "b", "b-1")
C: Party = ("prefill", "c", "c-1")
NODE: Party = ("transfer", "n1", "n1-1")
GOOD, BAD = Outcome("w", True), Outcome("w", False)
RULES = QuarantineRules()


def timed(took_s: float, expected_s: float = 0.1) -> Outcome:
    return Outcome("w", True, took_s, expected_s)


def noted(*said: tuple[Party, Outcome], rules: QuarantineRules = RULES) -> Quarantine:
    """One after the other, ten in a second."""
    quarantine = Quarantine(rules)
    for number, (party, outcome) in enumerate(said):
        quarantine.note(party, outcome, number / 10)
    return quarantine


def out_after_failures() -> Quarantine:
    """`A` was put out at 0.5 s, for `first_s`."""
    return noted((B, GOOD), (B, GOOD), (B, GOOD), (A, BAD), (A, BAD), (A, BAD))


def test_who_fails_where_others_do_not_is_out_for_a_while() -> None:
    quarantine = out_after_failures()
    assert quarantine.is_out(A, 0.6)
    assert not quarantine.is_out(B, 0.6)
    assert quarantine.parties_out(0.6) == [A]
    (shown,) = quarantine.kept_out(0.6)
    assert (shown.party, shown.state, shown.num_times) == (A, "out", 1)
    assert shown.reason == "3 of 3 failed, 0% elsewhere"
    assert shown.until_s == pytest.approx(0.5 + RULES.first_s)
    assert not quarantine.is_out(A, 0.6 + RULES.first_s)


def test_what_fails_everywhere_is_nobodys_own_fault() -> None:
    turns = itertools.cycle([A, B, C])
    quarantine = noted(*((next(turns), BAD) for _ in range(30)))
    # The first one had failed three times when the others had failed twice: never half of it.
    assert quarantine.parties_out(3.0) == []


def test_few_failures_among_much_that_goes_well_are_no_reason() -> None:
    said = [(A, BAD if number % 3 == 0 else GOOD) for number in range(30)]
    assert noted((B, GOOD), *said).parties_out(3.0) == []


def test_old_failures_are_no_reason() -> None:
    quarantine = Quarantine()
    for number in range(10):
        quarantine.note(A, BAD, number * RULES.window_s)
    assert quarantine.parties_out(10 * RULES.window_s) == []


def test_who_is_slow_against_others_is_out() -> None:
    fast = [(B, timed(0.1))] * 4
    assert noted(*fast, *[(A, timed(2.0))] * 4).is_out(A, 1.0)
    assert noted(*fast, *[(A, timed(2.0))] * 3).parties_out(1.0) == []


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (timed(2.0), timed(2.0)),  # all are slow: the machine is
        (timed(0.35), timed(0.01)),  # slow, and nobody cares
        (timed(2.0, expected_s=2.0), timed(0.1)),  # it had more to do
        (Outcome("w", True, 2.0), timed(0.1)),  # nobody knows what it should take
    ],
)
def test_who_is_not_slow_stays(own: Outcome, others: Outcome) -> None:
    assert noted(*[(B, others)] * 4, *[(A, own)] * 8).parties_out(2.0) == []


def test_nobody_is_slow_without_others_to_compare_with() -> None:
    assert noted(*[(A, timed(9.0))] * 10).parties_out(2.0) == []
    node_times: tuple[Party, Outcome] = (NODE, timed(0.1))
    assert noted(*[node_times] * 10, *[(A, timed(9.0))] * 10).parties_out(3.0) == []


def test_it_is_probed_by_one_request_at_a_time_and_comes_back() -> None:
    quarantine = out_after_failures()
    now_s = 0.5 + RULES.first_s
    for _ in range(RULES.num_good_probes):
        assert not quarantine.is_out(A, now_s)
        assert quarantine.kept_out(now_s)[0].state == "probed"
        quarantine.began(A, now_s)
        assert quarantine.is_out(A, now_s + 0.1), "a second one while the first runs"
        quarantine.note(A, GOOD, now_s + 0.2)
        now_s += 0.3
    assert quarantine.kept_out(now_s) == []


def test_a_failed_probe_doubles_the_time_up_to_a_limit() -> None:
    quarantine = out_after_failures()
    now_s, since_s = 0.5, 0.5
    for number in range(1, 12):
        for_s = min(RULES.first_s * 2 ** (number - 1), RULES.max_s)
        (shown,) = quarantine.kept_out(now_s)
        assert shown.until_s - now_s == pytest.approx(for_s)
        assert (shown.num_times, shown.since_s) == (number, since_s)
        now_s += for_s
        quarantine.began(A, now_s)
        quarantine.note(A, BAD, now_s)


def test_a_probe_that_crawls_is_a_failed_one() -> None:
    fast = [(B, timed(0.1))] * 4
    quarantine = noted(*fast, *[(A, timed(2.0))] * 4)
    now_s = 0.7 + RULES.first_s
    quarantine.began(A, now_s)
    quarantine.note(A, timed(2.0), now_s)
    assert quarantine.is_out(A, now_s + RULES.first_s)


def test_what_was_begun_before_it_was_put_out_is_no_probe() -> None:
    quarantine = out_after_failures()
    for _ in range(5):
        quarantine.note(A, GOOD, 1.0)
        quarantine.note(A, BAD, 1.0)
    (shown,) = quarantine.kept_out(1.0)
    assert (shown.num_times, shown.until_s) == (1, pytest.approx(0.5 + RULES.first_s))


def test_a_probe_of_which_nothing_is_heard_does_not_keep_it_out_for_ever() -> None:
    quarantine = out_after_failures()
    now_s = 0.5 + RULES.first_s
    quarantine.began(A, now_s)
    assert quarantine.is_out(A, now_s + 0.9 * RULES.probe_timeout_s)
    assert not quarantine.is_out(A, now_s + RULES.probe_timeout_s)


def test_a_node_of_which_nobody_complains_while_it_is_probed_comes_back() -> None:
    quarantine = noted((NODE, BAD), (NODE, BAD), (NODE, BAD))
    now_s = 0.2 + RULES.first_s
    for _ in range(RULES.num_good_probes + 1):
        assert quarantine.kept_out(now_s)
        quarantine.began(NODE, now_s)
        now_s += RULES.probe_timeout_s
    assert not quarantine.kept_out(now_s)
    for _ in range(3):
        quarantine.note(NODE, BAD, now_s)
    assert quarantine.kept_out(now_s)[0].num_times == 2, "soon again: for longer"


def test_another_incarnation_begins_anew() -> None:
    quarantine = out_after_failures()
    assert not quarantine.is_out(("prefill", "a", "a-2"), 0.6)


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.booleans(), st.floats(0.0, 30.0)))
)
def test_good_work_alone_puts_nobody_out(said: list[tuple[Party, bool, float]]) -> None:
    quarantine, now_s = Quarantine(), 0.0
    for party, is_good, passed_s in said:
        now_s += passed_s
        quarantine.note(party, GOOD if is_good or party != A else BAD, now_s)
        assert set(quarantine.parties_out(now_s)) <= {A}


# --- in the core ---------------------------------------------------------------------------------
def pair(name: str, node: str) -> list[InstanceReported]:
    return [
        InstanceReported(instance("prefill", f"p{name}", node)),
        InstanceReported(instance("decode", f"d{name}", node)),
    ]


def driven() -> Driven:
    made = Driven([])
    for event in [*pair("1", "n1"), *pair("2", "n2")]:
        made.feed(event)
    return made


def blame(made: Driven, service: str, name: str, incarnation: str) -> None:
    for _ in range(3):
        made.feed(OutcomeSeen(service, (name, incarnation), BAD))


def chosen(made: Driven, **asked: object) -> tuple[str, str]:
    answer = made.place(request(**asked), match("n1", 30))  # type: ignore[arg-type]
    assert isinstance(answer, AnswerPlaced)
    return answer.decision.winner.prefill.id, answer.decision.decode.id


def test_a_quarantined_instance_is_not_chosen_until_it_is_probed() -> None:
    made = driven()
    assert chosen(made)[0] == "p1"  # its node has the prefix
    blame(made, "prefill", "p1", "p1-1")
    assert [chosen(made)[0] for _ in range(3)] == ["p2"] * 3
    made.now_s = RULES.first_s
    for event in [*pair("1", "n1"), *pair("2", "n2")]:
        made.feed(event)
    assert [chosen(made)[0] for _ in range(3)] == ["p1", "p2", "p2"]


def test_the_last_of_a_role_is_chosen_whatever_is_said_of_it() -> None:
    made = driven()
    blame(made, "prefill", "p1", "p1-1")
    made.feed(InstanceReported(instance("prefill", "p2", "n2", state="draining")))
    assert chosen(made)[0] == "p1"
    assert chosen(made, prefill="p1")[0] == "p1"


def test_a_quarantined_node_is_neither_read_from_nor_worked_on() -> None:
    made = driven()
    blame(made, "transfer", "n1", "n1-1")
    answer = made.place(request(), match("n1", 30))
    assert isinstance(answer, AnswerPlaced)
    assert answer.decision.winner.prefill.id == "p2"
    assert answer.decision.decode.id == "d2"
    assert answer.decision.winner.sources == ()
    assert dict(answer.decision.counts)["quarantined"] == 1


def test_evidence_is_in_the_journal() -> None:
    made = driven()
    blame(made, "decode", "d1", "d1-1")
    made.feed(BillFinished("m", 1_000, 0, 1.0))
    events = [from_line(line).event for line in made.journal]
    assert OutcomeSeen("decode", ("d1", "d1-1"), BAD) in events
