from types import SimpleNamespace
from typing import Any, cast

import pytest

from scripts.bench.bars import Bar
from scripts.bench.engine import EngineBench
from scripts.bench.engine_costs import HOOK_REPEATS, hook_bars
from scripts.bench.engine_worker import Engine
from scripts.bench.hook_cost import HookClock
from scripts.bench.interleave import Series, VariantError


def hook_bar(answer: dict[str, Any] | None) -> Bar:
    """Of float32, where each call of the engine gives the same answer, or none."""
    turns: list[int] = []

    def call(_name: str, _dtype: str, operation: str, num_tokens: int, first_turn: int) -> Any:
        assert (operation, num_tokens) == ("hooks", 1024)
        turns.append(first_turn)
        if answer is None:
            raise VariantError("no answer")
        return answer

    def interleave(_group: str, variants: dict[str, Any]) -> dict[str, Series]:
        found = {name: Series() for name in variants}
        for name, measure in variants.items():
            try:
                found[name].values.append(measure())
            except VariantError as error:
                found[name].failure = str(error)
        return found

    bench = SimpleNamespace(
        length=lambda num_tokens: num_tokens,
        fleet=SimpleNamespace(call=call),
        interleave=interleave,
    )
    first, _ = hook_bars(cast(EngineBench, bench))
    assert answer is None or turns == [0, 1] * HOOK_REPEATS  # of two dtypes
    return first


@pytest.mark.parametrize(
    ("costs", "own", "value"),
    [
        ([0.004, 0.004], 0.006, 0.6),  # the larger of the two counts
        ([0.008, 0.008], 0.006, 0.8),
        ([0.014, 0.014], 0.006, 1.4),  # slower, and no error explains it
        ([0.0, 0.03], 0.02, 2.0),  # what hooks take themselves is known
    ],
)
def test_hooks_cost_what_they_take_or_what_a_prefill_takes_longer(
    costs: list[float], own: float, value: float
) -> None:
    bar = hook_bar({"costs": costs, "own": own})
    assert bar.value == pytest.approx(value)
    assert bar.ok == (value <= 1.0)


def test_a_cost_beyond_the_goal_by_less_than_its_error_is_not_measured() -> None:
    bar = hook_bar({"costs": [0.0, 0.03], "own": 0.006})
    assert (bar.value, bar.ok) == (None, False)
    assert "slower by 1.50 %" in bar.note


@pytest.mark.parametrize(
    ("answer", "why"),
    [({"costs": [None, None], "own": 0.001}, "too few layers"), (None, "no answer")],
)
def test_no_cost_is_not_a_cost_of_nothing(answer: dict[str, Any] | None, why: str) -> None:
    bar = hook_bar(answer)
    assert (bar.value, bar.ok) == (None, False)
    assert why in bar.note


@pytest.mark.parametrize("first_turn", [0, 1])
def test_each_clock_is_the_first_of_every_second_chunk(
    first_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.__new__(Engine)
    engine._loaded = cast(Any, SimpleNamespace(config=SimpleNamespace(num_layers=6), grid_tokens=8))
    ran: list[tuple[int, int]] = []

    def chunk(_tokens: Any, start: int, clock: HookClock) -> None:
        ran.append((start, clock.turn))
        clock.begin()
        for layer in range(6):
            clock.on_layer(layer)
        clock.end()

    monkeypatch.setattr(engine, "_chunk", chunk)
    monkeypatch.setattr(engine, "_tokens", lambda count: [0] * count)
    answer = engine.hooks(24, first_turn)
    a, b = first_turn, 1 - first_turn
    assert ran == [(0, a), (0, b), (8, b), (8, a), (16, a), (16, b)]
    assert len(answer["costs"]) == 3
    assert answer["own"] > 0
