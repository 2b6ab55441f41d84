"""Figures of one run."""

import pytest

from shared.simulator.outcome import Outcome, RequestOutcome


def outcome() -> Outcome:
    """Four requests, one a second; the third is refused after its prefill, the last at once."""
    requests = [
        RequestOutcome(float(number), 1_000, ttft_s=2.0, decode_s=4.0, output_tokens=41)
        for number in range(4)
    ]
    requests[2].fate, requests[2].decode_s = "refused_after_prefill", 0.0
    requests[3] = RequestOutcome(3.0, 1_000, fate="refused")
    return Outcome("random", requests, busy_by_prefill_s={"p1": 3.0, "p2": 1.0})


def test_the_refused_share_is_of_those_that_arrive_in_the_time() -> None:
    assert outcome().refused_share(0.0, 3.0) == 0.5
    assert outcome().refused_share(2.0, 3.0) == 1.0
    assert outcome().refused_share(9.0, 10.0) == 0.0


def test_prefill_is_busy_until_its_last_prompt_is_done_wasted_ones_too() -> None:
    assert outcome().prefill_busy == pytest.approx(4.0 / 2 / 4.0)
    assert Outcome("random", []).prefill_busy == 0.0


def test_what_is_decoded_after_the_last_arrival_does_not_count() -> None:
    # 40 steps from 2 to 6 s and from 3 to 7 s, of which until 3 s: a quarter of the first.
    assert outcome().decoded_per_s() == pytest.approx(10.0 / 3.0)
    assert outcome().decoded_per_s(2.0) == pytest.approx(10.0)
