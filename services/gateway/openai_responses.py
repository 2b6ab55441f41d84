"""Builds the JSON of answers: whole ones and the chunks of streams, for chat and completions."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from services.gateway.answer import Answer, Piece
from services.gateway.openai_logprobs import ChatLogprobs, CompletionLogprobs
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

    def logprobs(self, tokenizer: TextTokenizer) -> ChatLogprobs | CompletionLogprobs: ...


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


class ResponseBuilder:
    """The objects of one answer; all share id and creation time."""

    def __init__(
        self,
        answer: Answer,
        response_format: ResponseFormat,
        *,
        model: str,
        includes_usage: bool,
        returns_token_ids: bool,
        shows_bill: bool,
        tokenizer: TextTokenizer,
    ) -> None:
        self._answer = answer
        self._format = response_format
        self._includes_usage = includes_usage
        self._returns_token_ids = returns_token_ids
        self._shows_bill = shows_bill
        wants_logprobs = answer.job.sampling.top_logprobs is not None
        self._logprobs = response_format.logprobs(tokenizer) if wants_logprobs else None
        self._head = {
            "id": response_format.id_prefix + answer.job.request_id,
            "created": int(datetime.now(UTC).timestamp()),
            "model": model,
        }

    @property
    def usage(self) -> dict[str, Any]:
        prompt_tokens = self._answer.prompt.num_tokens
        completion_tokens = self._answer.num_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._answer.record.cached_tokens},
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choice = self._choice(
            self._format.whole_choice("".join(piece.text for piece in pieces)),
            finish_reason=pieces[-1].finish_reason,
            token_ids=[token for piece in pieces for token in piece.token_ids],
            logprobs=[one for piece in pieces for one in piece.logprobs],
        )
        body = {
            **self._head,
            "object": self._format.object_name,
            "choices": [choice],
            "usage": self.usage,
        }
        return {**body, **self._prompt_ids(), **self._bill()}

    def first_chunk(self) -> dict[str, Any] | None:
        """What opens the stream; None when there is nothing to say yet."""
        choice = self._format.first_choice()
        if choice is None:
            return None
        return self._chunk([self._choice(choice)], self._prompt_ids())

    def chunks(self, piece: Piece, *, is_first: bool) -> list[dict[str, Any]]:
        """The chunks of one piece, in order; none when it says nothing."""
        chunks: list[dict[str, Any]] = []
        tells_tokens = self._returns_token_ids or self._logprobs is not None
        if piece.text or (piece.token_ids and tells_tokens):
            choice = self._choice(
                self._format.delta_choice(piece.text),
                token_ids=list(piece.token_ids),
                logprobs=piece.logprobs,
            )
            is_opening = is_first and self._format.first_choice() is None
            chunks.append(self._chunk([choice], self._prompt_ids() if is_opening else {}))
        if piece.finish_reason is not None:
            last = self._choice(self._format.last_choice(), finish_reason=piece.finish_reason)
            bill = {} if self._includes_usage else self._bill()
            chunks.append(self._chunk([last], bill))
            if self._includes_usage:
                chunks.append({**self._chunk([], self._bill()), "usage": self.usage})
        return chunks

    def _chunk(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self._format.chunk_object_name, "choices": choices}
        if self._includes_usage:
            chunk["usage"] = None
        return {**chunk, **more}

    def _choice(
        self,
        content: dict[str, Any],
        *,
        finish_reason: str | None = None,
        token_ids: list[int] | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> dict[str, Any]:
        written = None
        if self._logprobs is not None and token_ids and len(logprobs) == len(token_ids):
            written = self._logprobs.write(token_ids, logprobs)
        choice = {"index": 0, **content, "logprobs": written, "finish_reason": finish_reason}
        if self._returns_token_ids and token_ids is not None:
            choice["token_ids"] = token_ids
        return choice

    def _prompt_ids(self) -> dict[str, Any]:
        if not self._returns_token_ids:
            return {}
        return {"prompt_token_ids": self._answer.prompt.token_ids}

    def _bill(self) -> dict[str, Any]:
        bill = self._answer.bill
        if not self._shows_bill or bill is None:
            return {}
        return {"moonpool": bill_for_client(bill)}
