import pytest

from scripts.bench.engine_layers import LayerClock, least_s


def test_a_layer_counts_as_it_was_undisturbed() -> None:
    """Each run has another slow layer."""
    runs = [[9.0, 1.0, 2.0], [1.0, 9.0, 2.0], [1.5, 1.5, 9.0]]
    assert least_s(runs) == pytest.approx(4.0)


def test_runs_of_other_work_are_not_summed() -> None:
    with pytest.raises(ValueError, match="zip"):
        least_s([[1.0], [1.0, 2.0]])


def test_the_clock_has_each_layer_and_what_follows_the_last() -> None:
    clock = LayerClock()
    for _ in range(2):
        clock.begin()
        for layer in range(3):
            clock.on_layer(layer)
        clock.end()
    assert len(clock.seconds) == 2 * 4
    assert min(clock.seconds) > 0
