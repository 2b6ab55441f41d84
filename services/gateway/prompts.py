"""From what a client sent to token ids and block keys; in threads where it takes long."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from services.gateway.body_parts import ChatMessage
from services.gateway.errors import ApiError, bad_request, context_exceeded
from services.gateway.openai_schema import ChatBody, CompletionBody
from shared.checkpoint.detokenizer import IncrementalDetokenizer
from shared.checkpoint.errors import ChatTemplateError
from shared.checkpoint.text_model import TextModel
from shared.checkpoint.tokenizer import TextTokenizer
from shared.kv.block_keys import chain_keys, seed_of
from shared.messages.conductor import ModelInfo

T = TypeVar("T")
THREADS = 2
SHORT_CHARS, SHORT_PARTS = 512, 4
"""Characters or ids, and messages or prompts: up to both it takes the loop some tenths of a
millisecond; a thread needs as long to take it over and to tell that it is done."""
MESSAGE_ROOM_BYTES = 64 << 10
"""Of a message, for all that is not tokens or keys."""
MAX_SCORES = 1 << 17
"""Log probabilities of prompts in one answer: some 40 MB of JSON."""


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    packed: bytes
    chain: bytes
    max_tokens: int
    echoed: str = ""
    """What an answer that starts with the prompt starts with."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class PromptMaker:
    """Owns the threads that render and tokenise."""

    def __init__(
        self,
        model: TextModel,
        *,
        default_max_tokens: int,
        max_message_bytes: int,
        max_prompt_tokens: int | None = None,
    ) -> None:
        self._model = model
        self._default_max_tokens = default_max_tokens
        self._max_message_bytes = max_message_bytes
        self._max_prompt_tokens = max_prompt_tokens
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

    async def prompts(
        self, body: ChatBody | CompletionBody, model: ModelInfo, namespace: bytes
    ) -> list[Prompt]:
        """Raises ApiError for what cannot be a prompt here."""
        if isinstance(body, ChatBody):
            return [await self.chat(body, model, namespace)]
        return await self.completion(body, model, namespace)

    async def chat(self, body: ChatBody, model: ModelInfo, namespace: bytes = b"") -> Prompt:
        def make() -> Prompt:
            ids = self._chat_ids(body.messages)
            return self._finish(ids, body.answer_limit, model, namespace, is_chat=True)

        return make() if _is_short_chat(body.messages) else await self._in_thread(make)

    async def chat_ids(self, messages: list[ChatMessage]) -> list[int]:
        return await self._in_thread(lambda: self._chat_ids(messages))

    async def text_ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._in_thread(
            lambda: self._encode(text, "prompt", add_special_tokens=add_special_tokens)
        )

    async def text_of(self, ids: list[int], param: str) -> str:
        """With special tokens left out, as answers are shown."""

        def decode() -> str:
            self._check_ids(ids, param)
            return self._model.tokenizer.decode(ids)

        return await self._in_thread(decode)

    async def completion(
        self, body: CompletionBody, model: ModelInfo, namespace: bytes = b""
    ) -> list[Prompt]:
        def make(given: str | list[int]) -> Prompt:
            if isinstance(given, str):
                ids = self._encode(given, "prompt", add_special_tokens=True)
            else:
                ids = given
            if not ids:
                raise bad_request("prompt", "Invalid 'prompt': it has no tokens")
            self._check_ids(ids, "prompt")
            prompt = self._finish(ids, body.answer_limit, model, namespace, is_chat=False)
            if not body.echo:
                return prompt
            text = given if isinstance(given, str) else self._model.tokenizer.decode(ids)
            return replace(prompt, echoed=text)

        def make_all() -> list[Prompt]:
            return [make(given) for given in body.prompt]

        is_short = _is_short(map(len, body.prompt))
        prompts = make_all() if is_short else await self._in_thread(make_all)
        _check_scores(body, prompts)
        return prompts

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _chat_ids(self, messages: list[ChatMessage]) -> list[int]:
        try:
            text = self._model.chat_template.render(
                [message.as_template_input() for message in messages]
            )
        except ChatTemplateError as error:
            raise bad_request("messages", str(error)) from None
        return self._encode(text, "messages", add_special_tokens=False)

    def _check_ids(self, ids: list[int], param: str) -> None:
        vocab_size = self._model.config.vocab_size
        bad = next((one for one in ids if not 0 <= one < vocab_size), None)
        if bad is not None:
            problem = f"token id {bad} is not between 0 and {vocab_size - 1}"
            raise bad_request(param, f"Invalid '{param}': {problem}")

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return self._model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ValueError as error:
            raise bad_request(param, f"Invalid '{param}': {error}") from None

    async def _in_thread(self, make: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, make)

    def _finish(
        self,
        ids: list[int],
        limit: int | None,
        model: ModelInfo,
        namespace: bytes,
        *,
        is_chat: bool,
    ) -> Prompt:
        """Check the lengths, then compute the keys."""
        context_tokens = model.context_tokens
        if len(ids) + (1 if limit is None else limit) > context_tokens:
            raise context_exceeded(
                context_tokens=context_tokens,
                prompt_tokens=len(ids),
                max_tokens=limit,
                is_chat=is_chat,
            )
        most = self._max_prompt_tokens
        if most is not None and len(ids) > most:
            raise ApiError(
                413,
                f"The prompt has {len(ids)} tokens; this deployment takes {most} at most.",
                param="messages" if is_chat else "prompt",
                code="prompt_too_long",
            )
        packed = np.asarray(ids, dtype="<i4").tobytes()
        chain = chain_keys(seed_of(model.root, namespace), packed, model.block_tokens)
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


def _is_short_chat(messages: Sequence[ChatMessage]) -> bool:
    return _is_short(len(message.content) for message in messages)


def _is_short(sizes: Iterable[int]) -> bool:
    """Whether the loop does it itself."""
    parts = list(itertools.islice(sizes, SHORT_PARTS + 1))
    return len(parts) <= SHORT_PARTS and sum(parts) <= SHORT_CHARS


def _check_scores(body: CompletionBody, prompts: Sequence[Prompt]) -> None:
    """Raises ApiError when the prompts' log probabilities would be more than an answer holds."""
    if body.num_prompt_logprobs is None:
        return
    num_tokens = sum(prompt.num_tokens for prompt in prompts) * body.num_each
    num_scores = num_tokens * (1 + body.num_prompt_logprobs)
    if num_scores > MAX_SCORES:
        raise bad_request(
            "logprobs",
            f"Invalid 'logprobs': with echo the answer would have {num_scores} log probabilities "
            f"of prompts; at most {MAX_SCORES} are given at once. Send fewer prompts at a time.",
            code="invalid_value",
        )
