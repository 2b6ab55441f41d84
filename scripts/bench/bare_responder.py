"""Answers every question with the same few bytes: what NATS and its client can do at most."""

import asyncio
import os

import uvloop

from shared.messages import subjects
from shared.runtime.bus import Bus

ANSWER = bytes(128)
"""About as long as a match of three nodes."""


async def main() -> None:
    bus = await Bus.connect(os.environ["MOONPOOL_NATS_URL"], name="bare")
    client = bus.client

    async def answer(message: object) -> None:
        await client.publish(message.reply, ANSWER)  # type: ignore[attr-defined]

    await client.subscribe(subjects.BENCH_BARE, queue="q", cb=answer)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
