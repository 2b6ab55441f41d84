import pytest

from scripts.replay import machine
from scripts.replay.machine import WINDOW_LOOKS, MachineCheck

STEADY = [1.0, 1.5] * (WINDOW_LOOKS // 2)
"""As where another thread comes and goes on the same core."""


def test_a_machine_that_changes_from_look_to_look_keeps_its_speed() -> None:
    check = MachineCheck(before_s=STEADY, after_s=STEADY, busy_s=STEADY * 3)
    assert check.moved == pytest.approx(0.0)
    assert check.looks_moved == pytest.approx(0.5)
    assert check.is_steady


def test_a_slower_window_is_a_slower_machine() -> None:
    slower = [1.2 * look_s for look_s in STEADY]
    check = MachineCheck(busy_s=STEADY + slower + STEADY)
    assert check.moved == pytest.approx(0.2)
    assert not check.is_steady


def test_a_slower_machine_afterwards_is_one_too() -> None:
    check = MachineCheck(before_s=STEADY, after_s=[1.2 * look_s for look_s in STEADY])
    assert check.moved == pytest.approx(0.2)


def test_idle_and_busy_are_not_compared() -> None:
    check = MachineCheck(before_s=[1.0], after_s=[1.1], busy_s=[5.0])
    assert check.moved == pytest.approx(0.1)
    assert check.summary() == {
        "moved": check.moved,
        "is_steady": True,
        "looks_moved": check.looks_moved,
        "look_s": {"before": 1.0, "busy": 5.0, "after": 1.1},
    }


def test_what_is_left_over_belongs_to_the_last_window() -> None:
    """One look alone would be no mean."""
    check = MachineCheck(busy_s=[1.0] * WINDOW_LOOKS * 2 + [3.0])
    assert check.moved == pytest.approx((WINDOW_LOOKS + 3) / (WINDOW_LOOKS + 1) - 1)


def test_a_short_run_is_compared_by_halves() -> None:
    assert MachineCheck(busy_s=[1.0] * 6 + [2.0] * 6).moved == pytest.approx(1.0)
    assert MachineCheck(busy_s=[1.0] * 3 + [2.0] * 3).moved == 0.0


def test_without_a_look_nothing_is_known() -> None:
    check = MachineCheck()
    assert (check.moved, check.looks_moved, check.summary()["look_s"]) == (0.0, 0.0, {})


def test_looks_are_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "IDLE_LOOKS", 3)
    monkeypatch.setattr(machine, "BETWEEN_IDLE_S", 0.0)
    check = MachineCheck()
    check.look_idle(check.before_s)
    assert len(check.before_s) == 3
    assert min(check.before_s) > 0
