"""The choices of one HTTP request: each a request of its own to the cluster, over one prompt."""

import asyncio
from collections.abc import AsyncIterator, Callable

from services.gateway.answer import Answer, Piece
from services.gateway.prompts import Prompt
from services.gateway.request_driver import Output

Emit = Callable[[Output], None]
MakeAnswer = Callable[[int, Emit], Answer]


class Choices:
    """Owns which choices run. `close` must be called, whatever happened before.

    `waits_for_first`: the prompt is long enough to be shared, so the others start when the first
    one has computed it, and find it in the cache.
    """

    def __init__(
        self, make: MakeAnswer, prompt: Prompt, *, num_choices: int, waits_for_first: bool
    ) -> None:
        self._make = make
        self.prompt = prompt
        self.num_choices = num_choices
        self._waits_for_first = waits_for_first
        self._outputs: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        self._is_closed = False
        self.answers: list[Answer] = []

    @property
    def first(self) -> Answer:
        return self.answers[0]

    @property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.answers)

    def start(self) -> None:
        self._start(1 if self._waits_for_first else self.num_choices)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Each with its choice, in order within it; raises ApiError when one failed."""
        num_left = self.num_choices
        while num_left:
            index, output = await self._outputs.get()
            piece = self.answers[index].take(output)
            self._start(self.num_choices)
            if piece is None:
                continue
            num_left -= piece.finish_reason is not None
            yield index, piece

    def close(self) -> None:
        self._is_closed = True
        for answer in self.answers:
            answer.close()

    def _start(self, num_wanted: int) -> None:
        while len(self.answers) < num_wanted and not self._is_closed:
            index = len(self.answers)

            def emit(output: Output, index: int = index) -> None:
                self._outputs.put_nowait((index, output))

            self.answers.append(self._make(index, emit))
            self.answers[index].start()
