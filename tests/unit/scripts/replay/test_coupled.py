from types import SimpleNamespace
from typing import Any

import pytest

from scripts.cli.output import CommandError
from scripts.cli.target import Target
from scripts.replay.coupled import FewestTokens, as_coupled, roles_of
from scripts.replay.plan import PlannedRequest


def planned(num_tokens: int) -> PlannedRequest:
    return PlannedRequest(0.0, num_tokens, 10, (), 64, "")


def test_a_request_goes_to_the_worker_with_the_fewest_tokens_under_way() -> None:
    chooser = FewestTokens(["b", "a"])
    first = chooser.begin(planned(500))
    assert first == {"prefill": "a", "decode": "a"}
    assert chooser.begin(planned(100))["prefill"] == "b"
    assert chooser.begin(planned(100))["prefill"] == "b"
    chooser.end(planned(500), first)
    assert chooser.begin(planned(100))["prefill"] == "a"


def test_a_worker_that_reports_in_two_roles_does_both() -> None:
    reports = [("prefill", "w1", "ready"), ("decode", "w1", "ready"), ("decode", "w2", "ready"),
               ("prefill", "w3", "draining")]  # fmt: skip
    state: Any = SimpleNamespace(
        instances=[SimpleNamespace(service=s, id=i, state=st) for s, i, st in reports]
    )
    assert roles_of(state) == {"w1": "both", "w2": "decode"}


async def test_without_the_admin_key_nothing_is_changed() -> None:
    target = Target("http://127.0.0.1:1", "nats://127.0.0.1:1", "")
    with pytest.raises(CommandError, match="admin key"):
        async with as_coupled(target):
            raise AssertionError("the roles were changed")
