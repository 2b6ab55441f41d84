"""Which of several transfers a worker attaches to, and why none took it."""

from typing import Any

import pytest

from shared.messages.common import ErrorCode, NodeRef
from shared.messages.pool import PoolDescription
from shared.runtime.errors import ServiceError
from shared.worker.pool_search import _attach_first, _Candidate


class Connection:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.is_closed = False

    async def call(self, *_arguments: Any, **_options: Any) -> Any:
        if isinstance(self.answer, ServiceError):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.is_closed = True


def candidate(name: str, answer: Any, num_workers: int = 0) -> Any:
    node = NodeRef(id=name, incarnation="1")
    workers = {"decode": num_workers}
    description = PoolDescription(node=node, is_ready=True, workers=workers)
    connection: Any = Connection(answer)
    return _Candidate(connection, description)


def refusal(code: ErrorCode) -> ServiceError:
    return ServiceError(code, f"it is {code}")


class Request:
    role = "decode"


async def test_the_one_with_the_fewest_workers_is_taken_and_the_others_are_let_go() -> None:
    busy, idle = candidate("a", "busy", 2), candidate("b", "idle", 1)
    request: Any = Request()
    found, why = await _attach_first([busy, idle], request)
    assert found == (idle.connection, "idle")
    assert why is None
    assert (busy.connection.is_closed, idle.connection.is_closed) == (True, False)


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_another_model_is_the_reason_only_when_all_hold_one(is_reversed: bool) -> None:
    other = candidate("a", refusal(ErrorCode.FORMAT_MISMATCH))
    draining = candidate("b", refusal(ErrorCode.DRAINING))
    request: Any = Request()
    _, why = await _attach_first([draining, other] if is_reversed else [other, draining], request)
    assert why is not None
    assert why.code == ErrorCode.DRAINING
    _, why = await _attach_first([other], request)
    assert why is not None
    assert why.code == ErrorCode.FORMAT_MISMATCH
