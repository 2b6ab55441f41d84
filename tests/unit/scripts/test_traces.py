"""Traces by name: those that are made need no file, and are the same for the same seed."""

import pytest

from scripts.cli.output import CommandError
from scripts.simulate.traces import GENERATED, TOOLAGENT, load_trace


@pytest.mark.parametrize("name", [GENERATED, TOOLAGENT])
def test_a_generated_trace_is_made_from_its_seed(name: str) -> None:
    made = load_trace(name)
    assert len(made) >= 2_000
    assert made == load_trace(name, seed=0)
    assert made != load_trace(name, seed=1)


def test_a_trace_that_is_not_there_is_named_with_those_that_need_no_file() -> None:
    with pytest.raises(CommandError) as caught:
        load_trace("nowhere")
    assert "there is no trace 'nowhere'" in caught.value.message
    assert TOOLAGENT in (caught.value.hint or "")
