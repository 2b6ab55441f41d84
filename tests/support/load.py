"""Steady load on a cluster while a test breaks it; what came of every request."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from scripts.soak.asking import Question
from scripts.soak.footprint import left_over
from tests.support.api import Api
from tests.support.cluster import HostedCluster
from tests.support.deadline import until
from tests.support.openai_users import OpenAiUsers

NUM_USERS = 6
MAX_TOKENS = 24
HANG_S = 30.0


@dataclass
class Outcomes:
    """Of all requests that were asked."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    right_at_s: list[float] = field(default_factory=list)
    """When each right answer was complete."""

    @property
    def num_right(self) -> int:
        return self.counts["right"]


class Load:
    """Users who ask one question after the other; every answer is compared to a cold run."""

    def __init__(self, cluster: HostedCluster, seed: int = 1) -> None:
        self.cluster = cluster
        models = httpx.get(f"{cluster.base_url}/v1/models", timeout=5, trust_env=False).json()
        self.api = Api(cluster.base_url, cluster.admin_key, models["data"][0]["id"])
        rng = random.Random(seed)
        trunk = [rng.randrange(3, 500) for _ in range(1_200)]
        self.prompts = [
            trunk[: rng.randrange(1, 1_000)] + [rng.randrange(3, 500) for _ in range(200)]
            for _ in range(6)
        ]
        self.wanted = [
            self.api.complete(prompt, cache="off", max_tokens=MAX_TOKENS).tokens
            for prompt in self.prompts
        ]

    def openai_users(self, num_users: int) -> OpenAiUsers:
        """Users of OpenAI's own client with the same questions."""
        questions = [
            Question(tuple(prompt), tuple(wanted))
            for prompt, wanted in zip(self.prompts, self.wanted, strict=True)
        ]
        api = self.api
        return OpenAiUsers(api.base_url, api.model, api.admin_key, questions, num_users)

    async def during(
        self, fault: Callable[[], Awaitable[None]], *, before_s: float = 0.5, after_s: float = 1.5
    ) -> Outcomes:
        """Break something under load, go on for a while, then wait for what is under way."""
        outcomes = Outcomes()
        over = asyncio.Event()
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.TaskGroup() as group:
            for user in range(NUM_USERS):
                group.create_task(self._ask_on(client, user, over, outcomes))
            try:
                await asyncio.sleep(before_s)
                await fault()
                await asyncio.sleep(after_s)
            finally:
                over.set()
        return outcomes

    async def _ask_on(
        self, client: httpx.AsyncClient, user: int, over: asyncio.Event, outcomes: Outcomes
    ) -> None:
        rng = random.Random(user)
        urls = self.cluster.base_urls
        while not over.is_set():
            index = rng.randrange(len(self.prompts))
            outcome = await self.ask(client, index, urls[user % len(urls)])
            kind = outcome.partition(":")[0]
            outcomes.counts[kind] += 1
            if kind == "right":
                outcomes.right_at_s.append(time.monotonic())
            else:
                outcomes.errors.append(outcome)
                await asyncio.sleep(0.1)

    async def ask(self, client: httpx.AsyncClient, index: int, url: str | None = None) -> str:
        """One stream: "right", "wrong: …", "error: …" or "hang: …"."""
        body = self.api.body(self.prompts[index], stream=True, max_tokens=MAX_TOKENS)
        tokens: list[int] = []
        try:
            async with (
                asyncio.timeout(HANG_S),
                client.stream(
                    "POST",
                    f"{url or self.api.base_url}/v1/completions",
                    json=body,
                    headers=self.api.headers,
                    timeout=HANG_S,
                ) as response,
            ):
                if response.status_code != 200:
                    return f"error: {response.status_code} {(await response.aread()).decode()}"
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        return f"error: {event['error']}"
                    for choice in event["choices"]:
                        tokens.extend(choice.get("token_ids") or [])
        except TimeoutError:
            return f"hang: {len(tokens)} tokens in {HANG_S:g} s"
        except httpx.HTTPError as error:
            return f"cut: {error!r}"
        is_right = tokens == self.wanted[index]
        return "right" if is_right else f"wrong: prompt {index}, {len(tokens)} tokens"

    async def all_is_given_back(self, timeout_s: float = 20.0) -> None:
        """No slot, promise or stream is held, and the index is what the pools hold."""
        await until(self._nothing_left, timeout_s=timeout_s, what="nothing is held")

    async def _nothing_left(self) -> bool:
        return await asyncio.to_thread(self._left) == []

    def _left(self) -> list[str]:
        names = self.cluster.cluster.names
        held = left_over(self.cluster.cluster.bus, {*names.prefills, *names.decodes})
        return self.cluster.call(held)
