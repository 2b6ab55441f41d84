import pytest

from scripts.bench.interleave import Series, VariantError, paired_ratio, run_interleaved


def test_variants_run_in_turn_and_each_round_starts_with_another() -> None:
    order: list[str] = []
    variants = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    run_interleaved(variants, rounds=3)
    assert "".join(order) == "abcbcacab"


def test_every_value_is_kept_with_the_load_it_was_taken_under() -> None:
    values, loads = iter([3.0, 1.0, 2.0]), iter([0.5, 9.0, 0.7])
    found = run_interleaved({"a": lambda: next(values)}, rounds=3, read_load=lambda: next(loads))[
        "a"
    ]
    assert found.values == [3.0, 1.0, 2.0]
    assert found.loads == [0.5, 9.0, 0.7]
    assert found.as_json() == {"rounds": 3, "min": 1.0, "median": 2.0, "max": 3.0, "load": 0.7}


def test_a_variant_that_fails_is_named_and_the_others_go_on() -> None:
    calls = 0

    def fails_second() -> float:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise VariantError("it broke")
        return 1.0

    found = run_interleaved({"bad": fails_second, "good": lambda: 2.0}, rounds=4)
    assert calls == 2
    assert found["bad"].as_json()["failure"] == "it broke"
    assert found["bad"].as_json()["rounds"] == 1
    assert not found["bad"].is_complete
    assert found["good"].values == [2.0] * 4


def test_a_ratio_compares_within_rounds() -> None:
    # The machine became four times slower, for both: still three times.
    slow, fast = Series(values=[3.0, 3.3, 12.0]), Series(values=[1.0, 1.1, 4.0])
    assert paired_ratio(slow, fast) == pytest.approx(3.0)


def test_rounds_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds"):
        run_interleaved({}, rounds=0)
