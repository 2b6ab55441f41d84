"""The definitions by which everything is measured."""

import pytest

from shared.scheduling.slo import Served, Slo, effective_capacity, goodput_per_s, meets, tbt_s

SLO = Slo(ttft_s=1.0, tbt_s=0.1)
GOOD, LATE, SLOW = Served(1.0, 0.1), Served(1.1, 0.05), Served(0.5, 0.2)


def test_tbt_is_the_mean_of_the_longest_tenth_of_intervals() -> None:
    times = [0.0]
    for interval in [0.01] * 18 + [0.5, 0.3]:
        times.append(times[-1] + interval)
    assert tbt_s(times) == pytest.approx(0.4)


def test_tbt_of_few_tokens_is_their_longest_interval() -> None:
    assert tbt_s([0.0, 0.1, 0.4]) == pytest.approx(0.3)


def test_a_single_token_has_no_tbt() -> None:
    assert tbt_s([5.0]) == 0.0
    assert tbt_s([]) == 0.0


def test_both_targets_must_be_met_and_a_missing_target_is_met() -> None:
    assert meets(GOOD, SLO)
    assert not meets(LATE, SLO)
    assert not meets(SLOW, SLO)
    assert meets(SLOW, Slo(ttft_s=1.0))


def test_effective_capacity_counts_what_was_refused() -> None:
    assert effective_capacity([GOOD, LATE, SLOW], 4, SLO) == 0.25
    assert effective_capacity([], 0, SLO) == 0.0
    with pytest.raises(ValueError, match="num_asked"):
        effective_capacity([GOOD], 0, SLO)


def test_goodput_is_a_rate() -> None:
    assert goodput_per_s([GOOD, GOOD, SLOW], SLO, 4.0) == 0.5
    with pytest.raises(ValueError, match="span_s"):
        goodput_per_s([], SLO, 0.0)
