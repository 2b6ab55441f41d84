"""One connection to Redis or Valkey, single or Cluster: the only file that speaks to it.

Every call is bounded. While Redis is away calls fail at once with StoreAway; whoever may try again
sets `is_up` first. Knows scripts, not what they are for.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from services.cache_index import redis_scripts

log = logging.getLogger("moonpool.cache-index")
T = TypeVar("T")
Call = tuple[str, Sequence[Any], Sequence[Any]]
"""Script, keys (of one slot), arguments."""
TIMEOUT_S = 1.0
MAX_PIPELINED = 256
MAX_CALLS = 4
"""At once; others wait their turn, as they would in Redis. A call holds a connection: a storm of
them would open as many as the client allows, and past that fail."""
TURN_TIMEOUT_S = 5.0
"""For a turn: calls end within a second or so each, and a Redis that keeps no pace is away."""
FAILURES = (RedisError, RedisClusterException, OSError, TimeoutError)


class StoreAway(Exception):
    """Redis cannot be reached or does not answer in time."""


class RedisConnection:
    def __init__(
        self, url: str, *, is_cluster: bool, options: Mapping[str, Any] | None = None
    ) -> None:
        """`options`: what the URL does not say (user, password, files of TLS)."""
        self.is_cluster = is_cluster
        every: dict[str, Any] = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            **(options or {}),
        }
        self._client: Any = (
            RedisCluster.from_url(url, **every)
            if is_cluster
            else redis.asyncio.Redis.from_url(url, **every)
        )
        self._shas = {
            script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
            for script in redis_scripts.ALL
        }
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self.is_up = False

    async def close(self) -> None:
        await self._client.aclose()

    async def call(self, *command: Any) -> Any:
        """One command on one key."""
        return await self._guard(lambda: self._client.execute_command(*command))

    async def run(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        return (await self.run_many([(script, keys, arguments)]))[0]

    async def run_many(self, calls: Sequence[Call]) -> list[Any]:
        """The answers of many scripts, a few round trips in all."""
        answers: list[Any] = []
        for first in range(0, len(calls), MAX_PIPELINED):
            piece = calls[first : first + MAX_PIPELINED]
            answers += await self._guard(lambda piece=piece: self._with_scripts(piece))  # type: ignore[misc]
        return answers

    async def pages(
        self, pattern: bytes, keys_at_once: int
    ) -> AsyncIterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        """All hashes whose name is like this, in pages of (key, fields)."""
        for node in await self._guard(self._primaries):
            cursor: int | None = None
            while cursor != 0:
                cursor, keys = await self._scan(node, cursor or 0, pattern, keys_at_once)
                if keys:
                    fields = await self._guard(lambda keys=keys: self._read(keys))  # type: ignore[misc]
                    yield list(zip(keys, fields, strict=True))

    async def memory_bytes(self) -> int:
        """What all masters use."""
        infos = await self._of_each(lambda target: self._client.info("memory", **target))
        return sum(int(info["used_memory"]) for info in infos)

    async def num_keys(self) -> int:
        return sum(await self._of_each(lambda target: self._client.dbsize(**target)))

    async def _of_each(self, ask: Callable[[dict[str, Any]], Awaitable[Any]]) -> list[Any]:
        """The answers of all masters."""
        answers = []
        for node in await self._guard(self._primaries):
            target = {} if node is None else {"target_nodes": node}
            answers.append(await self._guard(lambda target=target: ask(target)))  # type: ignore[misc]
        return answers

    async def _primaries(self) -> list[Any]:
        """The masters of a cluster; of a single server, itself."""
        if not self.is_cluster:
            return [None]
        await self._client.initialize()
        return list(self._client.get_primaries())

    async def _scan(
        self, node: Any, cursor: int, pattern: bytes, count: int
    ) -> tuple[int, list[bytes]]:
        target = {} if node is None else {"target_nodes": node}

        async def scan() -> Any:
            return await self._client.scan(cursor, match=pattern, count=count, **target)

        following, keys = await self._guard(scan)
        if isinstance(following, dict):  # a cluster gives a cursor for each node
            following = next(iter(following.values()))
        return int(following), list(keys)

    async def _read(self, keys: Sequence[bytes]) -> list[dict[bytes, bytes]]:
        pipeline = self._pipeline()
        for key in keys:
            pipeline.hgetall(key)
        answers: list[dict[bytes, bytes]] = await pipeline.execute()
        return answers

    def _pipeline(self) -> Any:
        return self._client.pipeline() if self.is_cluster else self._client.pipeline(False)

    async def _with_scripts(self, calls: Sequence[Call]) -> list[Any]:
        try:
            return await self._run(calls)
        except NoScriptError:  # a Redis that was started anew; every script is idempotent
            for script in redis_scripts.ALL:
                await self._client.script_load(script)
            return await self._run(calls)

    async def _run(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [await self._client.execute_command(*self._evalsha(*calls[0]))]
        pipeline = self._pipeline()
        for call in calls:
            pipeline.execute_command(*self._evalsha(*call))
        answers: list[Any] = await pipeline.execute()
        return answers

    def _evalsha(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        return ["EVALSHA", self._shas[script], len(keys), *keys, *arguments]

    async def _guard(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self._check_up()
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise self._taken_as_away(error) from error
        try:
            self._check_up()  # found out while this one waited
            return await call()
        except FAILURES as error:
            raise self._taken_as_away(error) from error
        finally:
            self._turns.release()

    def _check_up(self) -> None:
        if not self.is_up:
            raise StoreAway("Redis is away")

    def _taken_as_away(self, error: Exception) -> StoreAway:
        if self.is_up:
            log.warning("Redis is taken as away: %s: %s", type(error).__name__, error)
        self.is_up = False
        return StoreAway(f"{type(error).__name__}: {error}")
