"""One question of the demo over the OpenAI API, with moonpool's extensions. Judges nothing."""

from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from scripts.demo.plan import CachedFrom

TIMEOUT_S = 300.0


class AskError(Exception):
    """No usable answer."""


class Served(BaseModel):
    """The `moonpool` object of an answer: who served it and what it cost."""

    model_config = ConfigDict(extra="ignore")

    prefill: str
    decode: str
    cached_from: CachedFrom
    bytes_moved: int
    transfer_s: float
    ttft_s: float
    bill: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    served: Served


@dataclass(frozen=True, slots=True)
class Asker:
    """What all requests of one demo share."""

    http: httpx.AsyncClient
    base_url: str
    admin_key: str
    model: str
    text: str
    reading: str
    """New in every run, at the very start of the prompt: a run never hits those before it."""
    max_tokens: int
    system: str = field(default="Answer the question about the text in one or two sentences.")

    async def ask(
        self, question: str, *, placement: dict[str, str] | None, is_cached: bool
    ) -> Answer:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": f"Reading {self.reading}. {self.system}"},
                {"role": "user", "content": f"{self.text}\n\nQuestion: {question}"},
            ],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "return_token_ids": True,
            "cache": "on" if is_cached else "off",
        }
        if placement is not None:
            body["placement"] = placement
        headers = {"x-moonpool-bill": "1", "authorization": f"Bearer {self.admin_key}"}
        try:
            response = await self.http.post(
                f"{self.base_url}/v1/chat/completions",
                json=body,
                headers=headers,
                timeout=TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            raise AskError(
                f"no answer from {self.base_url}: {error or type(error).__name__}"
            ) from None
        return _answer_of(response)


def _answer_of(response: httpx.Response) -> Answer:
    try:
        body = response.json()
        if response.status_code != 200:
            raise AskError(f"HTTP {response.status_code}: {body['error']['message']}")
        choice, usage = body["choices"][0], body["usage"]
        return Answer(
            text=choice["message"]["content"],
            token_ids=[int(token) for token in choice["token_ids"]],
            prompt_tokens=int(usage["prompt_tokens"]),
            cached_tokens=int(usage["prompt_tokens_details"]["cached_tokens"]),
            served=Served.model_validate(body["moonpool"]),
        )
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise AskError(
            f"HTTP {response.status_code}, an answer that cannot be read: {error!r}"
        ) from None
