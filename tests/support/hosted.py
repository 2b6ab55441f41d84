"""A service run inside the test's own loop, with its parts in reach; ended cleanly or cut off."""

import asyncio
import contextlib
import logging
import secrets
from typing import Generic, Self, TypeVar

from shared.runtime.bus import Bus
from shared.runtime.lifecycle import Context, Service
from shared.runtime.settings import CommonSettings
from shared.runtime.tasks import Tasks
from tests.support.deadline import PATIENCE

S = TypeVar("S", bound=CommonSettings)
T = TypeVar("T", bound=Service)  # type: ignore[type-arg]


class Hosted(Generic[T]):
    """`async with Hosted(service, settings)`: started; `crash` ends it without any goodbye."""

    def __init__(self, name: str, service: T, settings: CommonSettings) -> None:
        self.service = service
        self.id = f"{name}-{secrets.token_hex(3)}"
        self._name = name
        self._settings = settings.model_copy(update={"instance_id": self.id})
        self._is_started = asyncio.Event()
        self._ending = asyncio.Event()
        self._is_crash = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._run())
        started = asyncio.ensure_future(self._is_started.wait())
        await asyncio.wait(
            {self._task, started}, return_when="FIRST_COMPLETED", timeout=15 * PATIENCE
        )
        started.cancel()
        assert self._is_started.is_set(), "the service did not start"
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.end()

    async def crash(self) -> None:
        self._is_crash = True
        await self.end()

    async def end(self) -> None:
        self._ending.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _run(self) -> None:
        log = logging.getLogger(f"test.{self._name}")
        bus = await Bus.connect(self._settings.nats_url, name=self._name)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                async with asyncio.TaskGroup() as group:
                    tasks = Tasks(group, log)
                    context = Context(
                        service=self._name,
                        settings=self._settings,
                        bus=bus,
                        tasks=tasks,
                        log=log,
                        incarnation=secrets.token_hex(8),
                        stopping=asyncio.Event(),
                    )
                    await self.service.start(context)
                    self._is_started.set()
                    await self._ending.wait()
                    if not self._is_crash:
                        await self.service.drain()
                        await context.stop_serving()
                        await self.service.stop()
                    assert await tasks.end(5.0 * PATIENCE) == []
        finally:
            await bus.client.close()
