"""Stopping the calls of a handle: when it is over none runs, also none that began meanwhile."""

import asyncio

from services.transfer.attachments import Attachment
from shared.messages.pool import Attach
from tests.support.transfer_node import GEOMETRY, ROOT


async def test_a_call_that_begins_while_others_are_stopped_is_stopped_too() -> None:
    worker = Attach(instance="w", incarnation="1", role="prefill", root=ROOT, geometry=GEOMETRY)
    attachment = Attachment("w:1:1", worker, 8)
    leaving, late_began = asyncio.Event(), asyncio.Event()

    async def call(left_after: asyncio.Event | None, began: asyncio.Event | None = None) -> None:
        task = asyncio.current_task()
        assert task is not None
        attachment.begin("h", task)
        try:
            if began is not None:
                began.set()
            await asyncio.Event().wait()
        finally:
            if left_after is not None:
                await left_after.wait()  # a thread has to leave the slots first
            attachment.finish("h", task)

    async with asyncio.TaskGroup() as group:
        first = group.create_task(call(leaving))
        await asyncio.sleep(0)
        stopping = group.create_task(attachment.stop_handle("h"))
        await asyncio.sleep(0)
        late = group.create_task(call(None, late_began))
        await late_began.wait()
        leaving.set()
        await stopping
        assert attachment.running == {}
        assert first.cancelled()
        assert late.cancelled()
