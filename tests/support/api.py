"""Asking a cluster over HTTP in tests: one question, its tokens, its bill."""

from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.deadline import PATIENCE

TIMEOUT_S = 60.0 * PATIENCE
NO_TLS = False
"""`verify` of who asks by plain HTTP: all authorities' certificates take 25 ms to read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion."""

    tokens: list[int]
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    served: dict[str, Any]

    @property
    def cached_from(self) -> str:
        return str(self.served["cached_from"])


@dataclass(frozen=True, slots=True)
class Api:
    """The API of one gateway, with the right to place requests."""

    base_url: str
    admin_key: str
    model: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.admin_key}", "x-moonpool-bill": "1"}

    def body(self, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": 16,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }

    def complete(self, prompt: str | list[int], **fields: Any) -> Answer:
        """The whole answer; fails on anything but 200."""
        response = httpx.post(
            f"{self.base_url}/v1/completions",
            json=self.body(prompt, **fields),
            headers=self.headers,
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=NO_TLS,
        )
        return self.read(response)

    async def complete_async(
        self, client: httpx.AsyncClient, prompt: str | list[int], **fields: Any
    ) -> Answer:
        response = await client.post(
            f"{self.base_url}/v1/completions",
            json=self.body(prompt, **fields),
            headers=self.headers,
            timeout=TIMEOUT_S,
        )
        return self.read(response)

    @staticmethod
    def read(response: httpx.Response) -> Answer:
        assert response.status_code == 200, response.text
        body = response.json()
        choice = body["choices"][0]
        return Answer(
            tokens=choice["token_ids"],
            text=choice["text"],
            finish_reason=choice["finish_reason"],
            prompt_tokens=body["usage"]["prompt_tokens"],
            cached_tokens=body["usage"]["prompt_tokens_details"]["cached_tokens"],
            served=body["moonpool"],
        )


def on_nodes(prefill: int, decode: int) -> dict[str, str]:
    """The placement field for instances by number."""
    return {"prefill": f"prefill-{prefill}", "decode": f"decode-{decode}"}
