"""Reports of the silent are not given out; models come from those that are ready."""

from services.conductor.heard import FORGET_AFTER_S, Heard, models_of
from shared.messages.reports import LEASE_S, InstanceReport
from tests.support.fake_instance import report


def test_a_silent_process_is_left_out_and_comes_back_with_its_next_report() -> None:
    heard: Heard[InstanceReport] = Heard()
    heard.hear(report("prefill", "p1", "n1"), 0.0)
    heard.hear(report("decode", "p1", "n1"), 1.0)
    assert [one.service for one in heard.current(LEASE_S)] == ["decode", "prefill"]
    assert [one.service for one in heard.current(LEASE_S + 0.5)] == ["decode"]
    heard.hear(report("prefill", "p1", "n1"), LEASE_S + 1)
    assert len(heard.current(LEASE_S + 1)) == 2


def test_only_the_incarnation_that_is_gone_is_forgotten() -> None:
    heard: Heard[InstanceReport] = Heard()
    heard.hear(report("prefill", "p1", "n1", incarnation="new"), 0.0)
    heard.forget("prefill", "p1", "old")
    assert len(heard.current(0.0)) == 1
    heard.forget("prefill", "p1", "new")
    assert heard.current(0.0) == []


def test_one_that_drains_does_not_hide_its_successor_of_the_same_name() -> None:
    heard: Heard[InstanceReport] = Heard()
    old = report("prefill", "p1", "n1", incarnation="old", state="draining")
    heard.hear(old, 0.0)
    assert [one.state for one in heard.current(0.0)] == ["draining"]
    heard.hear(report("prefill", "p1", "n1", incarnation="new"), 0.1)
    heard.hear(old, 0.2)
    assert [one.incarnation for one in heard.current(0.2)] == ["new"]
    # A successor that fell silent hides nobody.
    heard.hear(old, 0.2 + LEASE_S)
    assert [one.incarnation for one in heard.current(0.2 + LEASE_S)] == ["old"]


def test_processes_that_never_come_back_do_not_pile_up() -> None:
    heard: Heard[InstanceReport] = Heard()
    for number in range(50):
        heard.hear(report("prefill", f"p{number}", "n1"), 0.0)
    for beat in range(60):
        heard.hear(report("prefill", "alive", "n1"), FORGET_AFTER_S + 1 + beat)
    assert len(heard._reports) == 1


def test_models_are_those_of_ready_instances_and_the_larger_format_wins() -> None:
    reports = [
        report("prefill", "p1", "n1", root=b"a"),
        report("prefill", "p2", "n1", root=b"b", context_tokens=4_096),
        report("decode", "d2", "n1", root=b"b"),
        report("prefill", "p3", "n1", model="other", state="starting"),
    ]
    (model,) = models_of(reports)
    assert (model.name, model.root, model.context_tokens) == ("m", b"b", 4_096)
    assert models_of([]) == []
