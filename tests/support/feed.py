"""Reading a gateway's dashboard feed over HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

Event = tuple[str, dict[str, Any]]


class FeedReader:
    """Events in order; `state` is what a page would have by now."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.state: dict[str, Any] = {}
        self.requests: list[dict[str, Any]] = []

    async def next(self) -> Event:
        kind = ""
        async for line in self._lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                self._take(kind, data)
                return kind, data
        raise EOFError

    async def until(self, condition: Any) -> None:
        """Read on until `condition(self)`; the test's own time limit ends it."""
        while not condition(self):
            await self.next()

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "snapshot":
            self.state, self.requests = {}, []
        self.requests += data["requests"]
        self.state |= {name: found for name, found in data.items() if name != "requests"}


@asynccontextmanager
async def reading(http: httpx.AsyncClient, key: str = "") -> AsyncIterator[FeedReader]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with http.stream("GET", "/dashboard/events", headers=headers, timeout=30) as response:
        assert response.status_code == 200, await response.aread()
        yield FeedReader(response)
