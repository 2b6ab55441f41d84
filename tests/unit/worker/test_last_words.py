"""What a stage says last is said again when a message gets lost on the way."""

from collections.abc import Sequence
from typing import Any

import pytest

from shared.messages.bill import Reuse, Times
from shared.messages.common import ErrorCode, InstanceRef, NodeRef, Ok, RequestRef
from shared.messages.decode import Handoff, HandoffReply
from shared.messages.envelope import Message
from shared.messages.tokens import PromptLogprobs, TokenChunk
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.worker import handover, token_sender
from shared.worker.attempts import Attempt
from shared.worker.handover import hand_over
from shared.worker.token_sender import TokenSender

REF = RequestRef(request_id="r", gateway="g", gateway_incarnation="i")
DECODE = InstanceRef(id="d", incarnation="di", node="n")
HANDOFF = Handoff(
    ref=REF,
    node=NodeRef(id="n", incarnation="ni"),
    blocks=[],
    first_token=7,
    times=Times(),
    reuse=Reuse(prompt_tokens=3),
)
LOST = BusTimeout("s", 0.0)
NOBODY = NoResponder("s")


class LossyBus:
    """Answers what it is told to, one after the other; the last answer stays."""

    def __init__(self, answers: Sequence[Message | ServiceError]) -> None:
        self._answers = list(answers)
        self.asked: list[Message] = []

    async def request(self, _: str, message: Message, *_args: Any, **_more: Any) -> Message:
        self.asked.append(message)
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, ServiceError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sender, "LAST_PAUSE_S", 0.0)
    monkeypatch.setattr(handover, "PAUSE_S", 0.0)


async def test_the_last_chunk_is_said_until_the_gateway_has_heard_it() -> None:
    bus = LossyBus([LOST, NOBODY, Ok()])
    sender = TokenSender(bus, REF, "decode", "reply", 4)  # type: ignore[arg-type]
    await sender.send_last([5], finish_reason="length")
    assert len(bus.asked) == 3
    for chunk in bus.asked:
        assert isinstance(chunk, TokenChunk)
        assert (chunk.index, chunk.tokens, chunk.finish_reason) == (4, [5], "length")


async def test_a_gateway_that_never_hears_the_end_holds_nothing_up_for_ever() -> None:
    bus = LossyBus([NOBODY])
    sender = TokenSender(bus, REF, "decode", "reply")  # type: ignore[arg-type]
    await sender.send_last(finish_reason="stop")
    assert len(bus.asked) == token_sender.LAST_TRIES


async def test_scores_of_a_prompt_that_nobody_hears_are_not_the_instances_fault() -> None:
    bus = LossyBus([LOST, NOBODY])
    sender = TokenSender(bus, REF, "prefill", "reply")  # type: ignore[arg-type]
    piece = PromptLogprobs(first=1, logprobs=bytes(4))
    with pytest.raises(ServiceError) as caught:
        await sender.send_prompt(piece)
    assert (caught.value.code, caught.value.is_retryable) == (ErrorCode.OVERLOADED, True)
    assert len(bus.asked) == token_sender.LAST_TRIES


async def not_wanted() -> bool:
    return False


async def test_a_hand_over_whose_answer_is_lost_is_asked_again() -> None:
    slow = ServiceError(ErrorCode.DEADLINE, "not yet", is_retryable=True)
    bus = LossyBus([LOST, NOBODY, slow, HandoffReply(streamed_bytes=9)])
    reply = await hand_over(bus, Attempt(REF), DECODE, HANDOFF, not_wanted)  # type: ignore[arg-type]
    assert reply.streamed_bytes == 9
    assert len(bus.asked) == 4


async def test_a_decode_that_is_gone_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "UNHEARD_S", 0.0)
    bus = LossyBus([NOBODY])
    with pytest.raises(ServiceError) as caught:
        await hand_over(bus, Attempt(REF), DECODE, HANDOFF, not_wanted)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.is_retryable) == (ErrorCode.PEER_LOST, True)


async def test_what_decode_refuses_is_not_asked_again() -> None:
    bus = LossyBus([ServiceError(ErrorCode.NOT_RESERVED, "never heard of it", is_retryable=True)])
    with pytest.raises(ServiceError) as caught:
        await hand_over(bus, Attempt(REF), DECODE, HANDOFF, not_wanted)  # type: ignore[arg-type]
    assert caught.value.code == ErrorCode.NOT_RESERVED
    assert len(bus.asked) == 1


async def test_who_cannot_hand_over_gives_up_blocks_that_are_wanted() -> None:
    slow = ServiceError(ErrorCode.DEADLINE, "not yet", is_retryable=True)
    bus = LossyBus([slow, slow, HandoffReply()])
    answers = iter([False, True])

    async def is_wanted() -> bool:
        return next(answers)

    with pytest.raises(ServiceError, match="waits for its blocks") as gave_up:
        await hand_over(bus, Attempt(REF), DECODE, HANDOFF, is_wanted)  # type: ignore[arg-type]
    assert (gave_up.value.code, gave_up.value.is_retryable) == (ErrorCode.OVERLOADED, True)
