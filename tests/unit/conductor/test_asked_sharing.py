"""What a conductor asks for is told to the others: of many at once, of one or two when placed."""

import asyncio
import logging
from typing import Any

import pytest

from services.conductor import asked_sharing
from services.conductor.asked_sharing import FEW, GATHER_FEW_S, GATHER_S, AskedSharing
from shared.messages.conductor import Asked
from shared.scheduling.effects import SendReserve
from shared.scheduling.events import AskedElsewhere
from tests.support.placing import request


class Bus:
    def __init__(self) -> None:
        self.told: asyncio.Queue[Asked] = asyncio.Queue()

    async def publish(self, _subject: str, message: Asked) -> None:
        self.told.put_nowait(message)


def reserve(number: int) -> SendReserve:
    return SendReserve(
        place_id=number,
        role="prefill",
        instance=(f"p{number}", f"p{number}-1"),
        request=request(700),
        cached_tokens=32,
        sources=(),
        ttl_s=2.0,
        ttft_slo_s=None,
        reason="",
    )


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
async def test_many_are_told_sooner_than_few(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    slept_s: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept_s.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asked_sharing.asyncio, "sleep", note)
    bus: Any = Bus()
    heard: list[AskedElsewhere] = []
    sharing = AskedSharing("c1", bus, heard.append, logging.getLogger("test"))
    for number in range(count):
        sharing.on_asked(reserve(number))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(sharing.run())
        told = await bus.told.get()
        running.cancel()
    assert sum(slept_s) == pytest.approx(GATHER_S if count > FEW else GATHER_FEW_S)
    assert [one.id for one in told.promises] == [f"p{number}" for number in range(count)]
    sharing.hear(told)
    assert heard == []  # its own words
    AskedSharing("c2", bus, heard.append, logging.getLogger("test")).hear(told)
    assert [(one.instance[0], one.cached_tokens) for one in heard] == [
        (f"p{number}", 32) for number in range(count)
    ]
