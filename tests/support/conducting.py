"""Conductors on a real NATS among instances that only answer."""

import secrets
from contextlib import AsyncExitStack
from typing import Any

from services.conductor.service import ConductorService
from services.conductor.settings import ConductorSettings
from shared.messages import subjects
from shared.messages.common import Empty, RequestRef
from shared.messages.conductor import Placement, PlaceReply, PlaceRequest, StateReply
from shared.runtime.bus import Bus
from tests.support.deadline import until
from tests.support.fake_instance import FakeInstance, report
from tests.support.hosted import Hosted


class Conducting:
    """A conductor and what it hears; `add` makes an instance that it knows."""

    def __init__(self, bus: Bus, settings: ConductorSettings, stack: AsyncExitStack) -> None:
        self.bus = bus
        self.settings = settings
        self.stack = stack
        self.fakes: list[FakeInstance] = []

    async def host(self) -> Hosted[ConductorService]:
        service = ConductorService(self.settings)
        return await self.stack.enter_async_context(Hosted("conductor", service, self.settings))

    async def add(self, role: str, name: str, node: str, **changes: Any) -> FakeInstance:
        fake = FakeInstance(self.bus, report(role, name, node, **changes))
        await self.stack.enter_async_context(fake)
        self.fakes.append(fake)

        async def is_heard() -> bool:
            await fake.say()
            return name in {one.id for one in (await self.state()).instances}

        await until(is_heard, what=f"{name} heard")
        return fake

    async def two_nodes(self) -> dict[str, FakeInstance]:
        return {
            f"{role[0]}{number}": await self.add(role, f"{role[0]}{number}", f"n{number}")
            for role in ("prefill", "decode")
            for number in (1, 2)
        }

    async def state(self) -> StateReply:
        return await self.bus.request(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=2)

    async def place(
        self, *, explain: bool = False, timeout_s: float = 5, **changes: Any
    ) -> PlaceReply:
        ref = RequestRef(request_id=secrets.token_hex(4), gateway="g", gateway_incarnation="g-1")
        values = {"ref": ref, "model": "m", "num_tokens": 1_000, "max_tokens": 50} | changes
        subject = subjects.CONDUCTOR_EXPLAIN if explain else subjects.CONDUCTOR_PLACE
        return await self.bus.request(
            subject, PlaceRequest(**values), PlaceReply, timeout_s=timeout_s
        )

    async def placed(self, **changes: Any) -> Placement:
        reply = await self.place(**changes)
        assert reply.placement is not None, reply.refusal
        return reply.placement
