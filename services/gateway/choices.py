"""The choices of one HTTP request: each a request of its own to the cluster, over its prompt."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence

from services.gateway.answer import Answer, Piece
from services.gateway.prompts import Prompt
from services.gateway.request_driver import Output
from shared.messages.tokens import PromptLogprobs

Emit = Callable[[Output], None]
MakeAnswer = Callable[[int, Emit], Answer]


class Choices:
    """Owns which choices run. `close` must be called, whatever happened before.

    Each prompt has `num_each` choices one after the other. Where `first_goes_ahead`, those after
    its first one start when that one has computed the prompt; else all start at once.
    """

    def __init__(
        self,
        make: MakeAnswer,
        prompts: Sequence[Prompt],
        *,
        num_each: int,
        first_goes_ahead: Callable[[Prompt], bool],
    ) -> None:
        self._make = make
        self.prompts = prompts
        self._num_each = num_each
        self._first_goes_ahead = first_goes_ahead
        self._outputs: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        self._is_closed = False
        self.answers: dict[int, Answer] = {}

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self._num_each

    @property
    def first(self) -> Answer:
        return self.answers[0]

    @property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.answers.values())

    @property
    def num_cached_tokens(self) -> int:
        """Of each prompt as its first choice found it."""
        numbers = range(0, self.num_choices, self._num_each)
        return sum(self.answers[one].record.cached_tokens for one in numbers)

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self._num_each]

    def prompt_logprobs_of(self, index: int) -> tuple[PromptLogprobs, ...]:
        """As the first choice of the prompt found them."""
        return self.answers[index // self._num_each * self._num_each].prompt

    def start(self) -> None:
        for number, prompt in enumerate(self.prompts):
            self._start(number, 1 if self._first_goes_ahead(prompt) else self._num_each)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Each with its choice, in order within it; raises ApiError when one failed."""
        num_left = self.num_choices
        while num_left:
            index, output = await self._outputs.get()
            piece = self.answers[index].take(output)
            self._start(index // self._num_each, self._num_each)
            if piece is None:
                continue
            num_left -= piece.finish_reason is not None
            yield index, piece

    def close(self) -> None:
        self._is_closed = True
        for answer in self.answers.values():
            answer.close()

    def _start(self, number: int, num_wanted: int) -> None:
        """The first choices of one prompt that do not run yet."""
        for index in range(number * self._num_each, number * self._num_each + num_wanted):
            if index not in self.answers and not self._is_closed:
                self.answers[index] = self._make(index, functools.partial(self._take, index))
                self.answers[index].start()

    def _take(self, index: int, output: Output) -> None:
        self._outputs.put_nowait((index, output))
