"""Leases of other nodes end by release or by time, once."""

import pytest

from shared.kv.lease import LeaseTable


def test_a_lease_ends_when_its_time_is_over() -> None:
    table = LeaseTable()
    table.grant("a", "n1", now_s=10.0, ttl_s=5.0)
    table.grant("b", "n2", now_s=10.0, ttl_s=2.0)
    assert table.next_deadline_s() == 12.0
    assert table.expire(11.9) == []
    assert [lease.lease_id for lease in table.expire(12.0)] == ["b"]
    assert table.get("b") is None
    assert table.next_deadline_s() == 15.0
    assert [lease.holder for lease in table.expire(100.0)] == ["n1"]
    assert table.next_deadline_s() is None


def test_a_released_lease_does_not_expire() -> None:
    table = LeaseTable()
    table.grant("a", "n1", now_s=0.0, ttl_s=1.0)
    released = table.release("a")
    assert released is not None
    assert released.holder == "n1"
    assert table.release("a") is None
    assert table.next_deadline_s() is None
    assert table.expire(2.0) == []


def test_an_id_is_granted_once_at_a_time() -> None:
    table = LeaseTable()
    table.grant("a", "n1", now_s=0.0, ttl_s=1.0)
    with pytest.raises(ValueError, match="lease_id"):
        table.grant("a", "n2", now_s=0.0, ttl_s=1.0)


def test_many_short_leases_leave_nothing_behind() -> None:
    table = LeaseTable()
    table.grant("long", "n", now_s=0.0, ttl_s=1e9)
    for number in range(1000):
        table.grant(str(number), "n", now_s=float(number), ttl_s=1e6)
        table.release(str(number))
    assert len(table) == 1
    assert len(table._ends) < 200
