"""What is asked of a chunk that is scored, and how its scores reach the gateway."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.engine.prompt_scores import PromptScores
from shared.messages.common import ErrorCode, Ok, RequestRef
from shared.messages.tokens import MAX_SCORED, TokenChunk
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.worker import token_sender
from shared.worker.grid import Grid
from shared.worker.prompt_scoring import ScoreSender, pieces_of, wish_for
from shared.worker.token_sender import TokenSender
from tests.support.deadline import until

REF = RequestRef(request_id="r", gateway="g", gateway_incarnation="i")
GRID = Grid(block_tokens=4, grid_tokens=8)


class Listener:
    """A gateway's inbox; `problems` are what happens to the first messages."""

    def __init__(self, *problems: ServiceError) -> None:
        self._problems = list(problems)
        self.heard: list[TokenChunk] = []
        self.open = asyncio.Event()
        self.open.set()
        self.num_asked = 0

    async def request(self, _: str, message: TokenChunk, *_args: Any, **_more: Any) -> Ok:
        self.num_asked += 1
        await self.open.wait()
        if self._problems:
            raise self._problems.pop(0)
        self.heard.append(message)
        return Ok()

    @property
    def firsts(self) -> list[int]:
        return [chunk.prompt.first for chunk in self.heard if chunk.prompt is not None]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sender, "LAST_PAUSE_S", 0.0)


@pytest.fixture
def sending() -> Callable[[Listener], ScoreSender]:
    return lambda bus: ScoreSender(TokenSender(bus, REF, "prefill", "reply"))  # type: ignore[arg-type]


def scores(num_tokens: int, num_top: int = 2) -> PromptScores:
    values = np.arange(num_tokens, dtype=np.float32)
    top = values[:, None].repeat(num_top, axis=1)
    return PromptScores(values, top.astype(np.int32), top, 0.5)


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 8, 9, 16, 17, 20])
def test_chunks_together_score_every_token_but_the_first(num_tokens: int) -> None:
    tokens = np.arange(100, 100 + num_tokens, dtype=np.int32)
    targets: list[int] = []
    for chunk in GRID.chunks(0, num_tokens):
        wish = wish_for(tokens, chunk, 3)
        assert wish_for(tokens, chunk, None) is None
        if wish is not None:
            assert wish.num_top == 3
            assert 1 <= len(wish.targets) <= chunk.num_tokens
            assert chunk.start == len(targets)
            targets += wish.targets.tolist()
    assert targets == tokens[1:].tolist()


@pytest.mark.parametrize("num_tokens", [1, MAX_SCORED, MAX_SCORED + 1, 2 * MAX_SCORED + 5])
@pytest.mark.parametrize("num_top", [0, 2])
def test_scores_are_cut_to_pieces_that_a_message_holds(num_tokens: int, num_top: int) -> None:
    pieces = pieces_of(9, scores(num_tokens, num_top))
    assert [piece.first for piece in pieces] == list(range(9, 9 + num_tokens, MAX_SCORED))
    values = np.concatenate([np.frombuffer(piece.logprobs, "<f4") for piece in pieces])
    assert values.tolist() == list(range(num_tokens))
    likely = np.concatenate([np.frombuffer(piece.top_tokens, "<i4") for piece in pieces])
    assert likely.tolist() == np.arange(num_tokens).repeat(num_top).tolist()


async def test_a_piece_is_said_until_it_is_heard_and_before_the_next_one(
    sending: Callable[[Listener], ScoreSender],
) -> None:
    bus = Listener(BusTimeout("s", 0.0), NoResponder("s"))
    sender = sending(bus)
    await sender.send(1, scores(3))
    await sender.send(4, scores(3))
    await sender.drain()
    assert bus.firsts == [1, 4]
    assert bus.num_asked == 4


async def test_whoever_sends_does_not_wait_for_its_own_piece_but_for_the_one_before(
    sending: Callable[[Listener], ScoreSender],
) -> None:
    bus = Listener()
    bus.open.clear()
    sender = sending(bus)
    await sender.send(1, scores(3))
    second = asyncio.ensure_future(sender.send(4, scores(3)))
    await until(lambda: bus.num_asked == 1, what="the first one is on its way")
    assert not second.done()
    bus.open.set()
    await second
    await sender.drain()
    assert bus.firsts == [1, 4]


async def test_a_gateway_that_never_hears_is_an_error_to_try_again(
    sending: Callable[[Listener], ScoreSender],
) -> None:
    bus = Listener(*[NoResponder("s")] * token_sender.LAST_TRIES)
    sender = sending(bus)
    await sender.send(1, scores(3))
    with pytest.raises(ServiceError) as caught:
        await sender.drain()
    assert (caught.value.code, caught.value.is_retryable) == (ErrorCode.OVERLOADED, True)
    await sender.close()


async def test_what_is_under_way_ends_with_its_sender(
    sending: Callable[[Listener], ScoreSender],
) -> None:
    bus = Listener()
    bus.open.clear()
    sender = sending(bus)
    await sender.send(1, scores(3))
    await until(lambda: bus.num_asked == 1, what="it is on its way")
    await sender.close()
    bus.open.set()
    await sender.drain()
    assert bus.firsts == []
