"""Builds the JSON of answers: whole ones and the chunks of streams, for chat and completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from services.gateway.answer import Piece
from services.gateway.choices import Choices
from services.gateway.openai_logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from services.gateway.request_record import bill_for_client
from shared.checkpoint.tokenizer import TextTokenizer
from shared.messages.tokens import TokenLogprobs


class ResponseFormat(Protocol):
    """What differs between chat and plain completions."""

    id_prefix: str
    object_name: str
    chunk_object_name: str

    def first_choice(self) -> dict[str, Any] | None:
        """A choice that opens a stream before any text."""

    def delta_choice(self, text: str) -> dict[str, Any]: ...

    def last_choice(self) -> dict[str, Any]: ...

    def whole_choice(self, text: str) -> dict[str, Any]: ...

    def logprobs(self, tokenizer: TextTokenizer) -> Logprobs: ...


class ChatFormat:
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def first_choice(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def delta_choice(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def last_choice(self) -> dict[str, Any]:
        return {"delta": {}}

    def whole_choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, tokenizer: TextTokenizer) -> ChatLogprobs:
        return ChatLogprobs(tokenizer)


class CompletionFormat:
    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def first_choice(self) -> dict[str, Any] | None:
        return None

    def delta_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def last_choice(self) -> dict[str, Any]:
        return {"text": ""}

    def whole_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, tokenizer: TextTokenizer) -> CompletionLogprobs:
        return CompletionLogprobs(tokenizer)


@dataclass(frozen=True, slots=True)
class ResponseWishes:
    """What the client wants to be told, and how."""

    model: str
    includes_usage: bool
    returns_token_ids: bool
    shows_bill: bool
    tokenizer: TextTokenizer


class ResponseBuilder:
    """The objects of one answer; all share id and creation time."""

    def __init__(
        self, choices: Choices, response_format: ResponseFormat, wishes: ResponseWishes
    ) -> None:
        self._choices = choices
        self._format = response_format
        self._wishes = wishes
        job = choices.first.job
        self.tells_prompt = job.prompt_logprobs is not None
        """Whether each choice starts with the log probabilities of its prompt."""
        self._logprobs: list[Logprobs] = []
        if job.sampling.top_logprobs is not None:
            self._logprobs = [
                response_format.logprobs(wishes.tokenizer) for _ in range(choices.num_choices)
            ]
        self._opened: set[int] = set()
        self._head = {
            "id": response_format.id_prefix + job.request_id,
            "created": int(datetime.now(UTC).timestamp()),
            "model": wishes.model,
        }

    @property
    def usage(self) -> dict[str, Any]:
        """A prompt counts once; what of it was cached is as its first choice found it."""
        prompt_tokens = sum(prompt.num_tokens for prompt in self._choices.prompts)
        completion_tokens = self._choices.num_tokens
        cached_tokens = self._choices.num_cached_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }

    def whole(self, pieces: Sequence[tuple[int, Piece]]) -> dict[str, Any]:
        numbers = range(self._choices.num_choices)
        body = {
            **self._head,
            "object": self._format.object_name,
            "choices": [
                self._whole_choice(number, [piece for index, piece in pieces if index == number])
                for number in numbers
            ],
            "usage": self.usage,
        }
        return {**body, **self._prompt_ids(0), **self._bill(0)}

    def chunks(self, index: int, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of one piece of a choice, in order; none when it says nothing. Those of
        `opening_chunks` go before the first ones."""
        chunks: list[dict[str, Any]] = []
        has_opening = self._format.first_choice() is not None
        opening = {} if self._opened or has_opening else self._prompt_ids(index)
        text = piece.text
        is_first = index not in self._opened
        if is_first:
            self._opened.add(index)
            text = self._choices.prompt_of(index).echoed + text
        tells_tokens = self._wishes.returns_token_ids or bool(self._logprobs)
        tells_prompt = is_first and self.tells_prompt
        if text or tells_prompt or (piece.token_ids and tells_tokens):
            choice = self._choice(
                index,
                self._format.delta_choice(text),
                token_ids=list(piece.token_ids),
                logprobs=piece.logprobs,
                tells_prompt=tells_prompt,
            )
            chunks.append(self._chunk([choice], opening))
        if piece.finish_reason is not None:
            last = self._choice(
                index, self._format.last_choice(), finish_reason=piece.finish_reason
            )
            is_end = self._choices.num_choices == 1 and not self._wishes.includes_usage
            bill = self._bill(index) if is_end else {}
            chunks.append(self._chunk([last | self._own_bill(index)], bill))
        return chunks

    def opening_chunks(self) -> list[dict[str, Any]]:
        """Of all choices in order before any text: OpenAI's helpers count on it. They say nothing
        that is not known when the request begins."""
        first = self._format.first_choice()
        if first is None:
            return []
        return [
            self._chunk([self._choice(number, first)], {} if number else self._prompt_ids(0))
            for number in range(self._choices.num_choices)
        ]

    def last_chunk(self) -> dict[str, Any] | None:
        """The usage of the whole request, when it is wanted."""
        if not self._wishes.includes_usage:
            return None
        return {**self._chunk([], self._bill(0)), "usage": self.usage}

    def _chunk(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self._format.chunk_object_name, "choices": choices}
        if self._wishes.includes_usage:
            chunk["usage"] = None
        return {**chunk, **more}

    def _whole_choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = self._choices.prompt_of(index).echoed + "".join(piece.text for piece in pieces)
        choice = self._choice(
            index,
            self._format.whole_choice(text),
            finish_reason=pieces[-1].finish_reason,
            token_ids=[token for piece in pieces for token in piece.token_ids],
            logprobs=[one for piece in pieces for one in piece.logprobs],
            tells_prompt=self.tells_prompt,
        )
        return choice | self._own_bill(index)

    def _choice(
        self,
        index: int,
        content: dict[str, Any],
        *,
        finish_reason: str | None = None,
        token_ids: list[int] | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
        tells_prompt: bool = False,
    ) -> dict[str, Any]:
        written = self._written(index, token_ids or [], logprobs, tells_prompt=tells_prompt)
        choice = {"index": index, **content, "logprobs": written, "finish_reason": finish_reason}
        if self._wishes.returns_token_ids and token_ids is not None:
            choice["token_ids"] = token_ids
            if len(self._choices.prompts) > 1:
                choice |= {"prompt_token_ids": self._choices.prompt_of(index).token_ids}
        return choice

    def _written(
        self,
        index: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        *,
        tells_prompt: bool,
    ) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        writer = self._logprobs[index]
        parts: list[dict[str, Any]] = []
        if tells_prompt:
            prompt, pieces = self._choices.prompt_of(index), self._choices.prompt_logprobs_of(index)
            parts.append(writer.write_prompt(prompt.token_ids, prompt.echoed, pieces))
        if token_ids and len(logprobs) == len(token_ids):
            parts.append(writer.write(token_ids, logprobs))
        return writer.joined(parts)

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        """Beside the choices where there is one prompt, else in each of them."""
        if not self._wishes.returns_token_ids or len(self._choices.prompts) > 1:
            return {}
        return {"prompt_token_ids": self._choices.prompt_of(index).token_ids}

    def _own_bill(self, index: int) -> dict[str, Any]:
        """Of one choice among several."""
        return self._bill(index) if self._choices.num_choices > 1 else {}

    def _bill(self, index: int) -> dict[str, Any]:
        bill = self._choices.answers[index].bill
        if not self._wishes.shows_bill or bill is None:
            return {}
        return {"moonpool": bill_for_client(bill)}
