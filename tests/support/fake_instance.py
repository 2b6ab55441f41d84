"""A prefill or decode instance without a model: reports, and answers reserve and cancel."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self

from shared.messages import subjects
from shared.messages.common import Ok
from shared.messages.prefill import Cancel, Reserve, ReserveReply
from shared.messages.reports import InstanceReport
from shared.runtime.bus import Bus
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.tasks import Tasks

ROOT = b"r" * 16


def report(service: str, name: str, node: str, **changes: Any) -> InstanceReport:
    values: dict[str, Any] = {
        "service": service,
        "id": name,
        "incarnation": f"{name}-1",
        "node": node,
        "node_incarnation": f"{node}-1",
        "state": "ready",
        "model": "m",
        "root": ROOT,
        "kv_format": {"dtype": "float32"},
        "block_tokens": 16,
        "grid_tokens": 32,
        "block_bytes": 1 << 20,
        "context_tokens": 8_192,
        "free_tokens": 100_000,
        "capacity_tokens": 100_000,
    }
    return InstanceReport(**(values | changes))


class FakeInstance:
    """`async with`: answers and has reported once. `answer` may be replaced."""

    def __init__(self, bus: Bus, own: InstanceReport) -> None:
        self._bus = bus
        self.report = own
        self.reserves: list[Reserve] = []
        self.cancels: list[Cancel] = []
        self.answer: Callable[[Reserve], Awaitable[ReserveReply]] = self._accept
        self._group = asyncio.TaskGroup()
        self._service: MicroService | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        log = logging.getLogger("test.fake-instance")
        self._service = MicroService(self._bus, Tasks(self._group, log), log)
        role, name = self.report.service, self.report.id
        endpoints: list[Endpoint[Any, Any]] = [
            Endpoint(
                "reserve",
                subjects.instance(role, name, "reserve"),
                Reserve,
                ReserveReply,
                self._on_reserve,
                "reserve",
            ),
            Endpoint(
                "cancel", subjects.instance(role, name, "cancel"), Cancel, Ok, self._on_cancel, ""
            ),
        ]
        await self._service.start(
            name=role, version="0.0.1", description="", metadata={}, endpoints=endpoints
        )
        await self.say()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.vanish()
        await self._group.__aexit__(None, None, None)

    async def say(self) -> None:
        await self._bus.publish(subjects.report(self.report.service, self.report.id), self.report)
        await self._bus.flush()

    async def vanish(self) -> None:
        """Stop listening without a word."""
        if self._service is not None:
            await self._service.stop()
            await self._bus.flush()
            self._service = None

    async def _on_reserve(self, reserve: Reserve) -> ReserveReply:
        self.reserves.append(reserve)
        return await self.answer(reserve)

    async def _on_cancel(self, cancel: Cancel) -> Ok:
        self.cancels.append(cancel)
        return Ok()

    @staticmethod
    async def _accept(_: Reserve) -> ReserveReply:
        return ReserveReply(is_accepted=True, expected_start_s=0.25)

    async def start(self, reserve: Reserve) -> ReserveReply:
        """Accept, and begin a run that comes along."""
        return ReserveReply(is_accepted=True, has_run=bool(reserve.run))

    async def refuse(self, _: Reserve) -> ReserveReply:
        return ReserveReply(is_accepted=False, reason="full", retry_after_s=0.7)

    async def hang(self, _: Reserve) -> ReserveReply:
        await asyncio.sleep(2)
        return ReserveReply(is_accepted=True)
