import pytest

from scripts.replay.machine import MachineCheck


def test_each_kind_of_time_is_compared_with_its_own() -> None:
    check = MachineCheck(idle_s=[1.0, 1.1], busy_s=[2.0, 2.2, 2.0])
    assert check.moved == pytest.approx(0.1)
    assert check.is_steady
    check.busy_s.append(2.4)
    assert check.moved == pytest.approx(0.2)
    assert not check.is_steady


def test_a_look_takes_one_time() -> None:
    check = MachineCheck()
    check.look_idle()
    check.look_idle()
    assert len(check.idle_s) == 2
    assert min(check.idle_s) > 0
