"""Users with OpenAI's own client, which tries nothing twice; half of them keep no connection."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import openai

from scripts.soak.asking import HANG_S, Question

PAUSE_AFTER_ERROR_S = 0.1


@dataclass
class OpenAiUsers:
    """Each asks one question after the other; even ones over connections that are kept."""

    base_url: str
    model: str
    key: str
    questions: Sequence[Question]
    num_users: int
    num_right: Counter[int] = field(default_factory=Counter)
    """By user."""
    errors: list[str] = field(default_factory=list)

    async def run(self, over: asyncio.Event) -> None:
        """Until `over`, and until what is under way then has ended."""
        async with self._client() as kept, asyncio.TaskGroup() as group:
            for user in range(self.num_users):
                group.create_task(self._ask_on(user, kept if user % 2 == 0 else None, over))

    @property
    def all_are_served(self) -> bool:
        """Each user had a right answer since `num_right` was cleared."""
        return len(self.num_right) == self.num_users

    def _client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.base_url}/v1", api_key=self.key, max_retries=0, timeout=HANG_S
        )

    async def _ask_on(
        self, user: int, kept: openai.AsyncOpenAI | None, over: asyncio.Event
    ) -> None:
        rng = random.Random(user)
        while not over.is_set():
            question = rng.choice(self.questions)
            try:
                if kept is None:
                    async with self._client() as client:
                        tokens = await self._ask(client, question)
                else:
                    tokens = await self._ask(kept, question)
            except openai.OpenAIError as error:
                self.errors.append(f"{error!r} from {error.__cause__!r}")
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)
                continue
            if tokens == list(question.answer):
                self.num_right[user] += 1
            else:
                self.errors.append(f"wrong: {len(tokens)} tokens of {len(question.answer)}")

    async def _ask(self, client: openai.AsyncOpenAI, question: Question) -> list[int]:
        tokens: list[int] = []
        stream = await client.completions.create(
            model=self.model,
            prompt=list(question.prompt),
            max_tokens=len(question.answer),
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                tokens += (choice.model_extra or {}).get("token_ids") or []
        return tokens
