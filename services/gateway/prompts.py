"""From what a client sent to token ids and block keys, long ones in threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from services.gateway.errors import ApiError, bad_request, context_exceeded
from services.gateway.openai_schema import ChatBody, CompletionBody
from shared.checkpoint.detokenizer import IncrementalDetokenizer
from shared.checkpoint.errors import ChatTemplateError
from shared.checkpoint.text_model import TextModel
from shared.checkpoint.tokenizer import TextTokenizer
from shared.kv.block_keys import chain_keys
from shared.messages.conductor import ModelInfo

T = TypeVar("T")
THREADS = 2
SHORT_CHARS = 1_024
"""Handing so little to a thread and back takes longer than doing it."""
MESSAGE_CHARS = 32
"""What rendering one message is worth."""
MESSAGE_ROOM_BYTES = 64 << 10
"""Of a message, for all that is not tokens or keys."""


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    packed: bytes
    chain: bytes
    max_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class PromptMaker:
    """Owns the threads that render and tokenise."""

    def __init__(
        self, model: TextModel, *, default_max_tokens: int, max_message_bytes: int
    ) -> None:
        self._model = model
        self._default_max_tokens = default_max_tokens
        self._max_message_bytes = max_message_bytes
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenise")

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset(self._model.tokenizer.eos_token_ids) | frozenset(
            self._model.config.eos_token_ids
        )

    def check_biases(self, biases: list[tuple[int, float]]) -> None:
        """Raises ApiError for a token that the model has not."""
        vocab_size = self._model.config.vocab_size
        bad = next((token for token, _ in biases if token >= vocab_size), None)
        if bad is not None:
            problem = f"token id {bad} is not between 0 and {vocab_size - 1}"
            raise bad_request(
                "logit_bias", f"Invalid 'logit_bias': {problem}", code="invalid_value"
            )

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._model.tokenizer

    def detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self._model.tokenizer)

    async def chat(self, body: ChatBody, model: ModelInfo) -> Prompt:
        def make() -> Prompt:
            messages = [message.as_template_input() for message in body.messages]
            try:
                text = self._model.chat_template.render(messages)
            except ChatTemplateError as error:
                raise bad_request("messages", str(error)) from None
            ids = self._encode(text, "messages", add_special_tokens=False)
            return self._finish(ids, body.answer_limit, model, is_chat=True)

        size = sum(len(message.content) + MESSAGE_CHARS for message in body.messages)
        return await self._made(make, size)

    async def completion(self, body: CompletionBody, model: ModelInfo) -> Prompt:
        def make() -> Prompt:
            given = body.prompt
            if isinstance(given, str):
                ids = self._encode(given, "prompt", add_special_tokens=True)
            else:
                ids = given
            if not ids:
                raise bad_request("prompt", "Invalid 'prompt': it has no tokens")
            vocab_size = self._model.config.vocab_size
            bad = next((one for one in ids if not 0 <= one < vocab_size), None)
            if bad is not None:
                problem = f"token id {bad} is not between 0 and {vocab_size - 1}"
                raise bad_request("prompt", f"Invalid 'prompt': {problem}")
            return self._finish(ids, body.answer_limit, model, is_chat=False)

        return await self._made(make, len(body.prompt))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return self._model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ValueError as error:
            raise bad_request(param, f"Invalid '{param}': {error}") from None

    async def _made(self, make: Callable[[], T], size: int) -> T:
        """`size`: characters, or tokens that are given as such."""
        if size <= SHORT_CHARS:
            return make()
        return await asyncio.get_running_loop().run_in_executor(self._executor, make)

    def _finish(
        self, ids: list[int], limit: int | None, model: ModelInfo, *, is_chat: bool
    ) -> Prompt:
        """Check the lengths, then compute the keys."""
        context_tokens = model.context_tokens
        if len(ids) + (limit or 1) > context_tokens:
            raise context_exceeded(
                context_tokens=context_tokens,
                prompt_tokens=len(ids),
                max_tokens=limit,
                is_chat=is_chat,
            )
        packed = np.asarray(ids, dtype="<i4").tobytes()
        chain = chain_keys(model.root, packed, model.block_tokens)
        size = len(packed) + len(chain) + MESSAGE_ROOM_BYTES
        if size > self._max_message_bytes:
            raise ApiError(
                413,
                f"The prompt needs a message of {size} bytes; this cluster's NATS takes "
                f"{self._max_message_bytes}. Shorten it or raise max_payload of NATS.",
                param="messages" if is_chat else "prompt",
                code="message_too_large",
            )
        room = context_tokens - len(ids)
        max_tokens = limit if limit is not None else min(self._default_max_tokens, room)
        return Prompt(ids, packed, chain, max_tokens)
