"""Attempts that their gateway gives up by name: its own, and no others."""

import asyncio
import logging

from shared.messages.common import RequestRef
from shared.runtime.tasks import Tasks
from shared.worker.attempts import Attempt, Attempts
from shared.worker.peer_watch import Peer, PeerWatch


def ref(request_id: str, incarnation: str = "gi") -> RequestRef:
    return RequestRef(request_id=request_id, gateway="g", gateway_incarnation=incarnation)


async def test_a_gateway_ends_its_own_attempts_by_name() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, logging.getLogger("test"))
        attempts: Attempts[Attempt] = Attempts(tasks, PeerWatch(3.0, 0.0))
        made = [Attempt(ref("named")), Attempt(ref("kept")), Attempt(ref("other", "another"))]
        for attempt in made:
            attempts.begin(attempt, attempt.gone.wait(), [attempt.gateway])  # type: ignore[arg-type]
        await asyncio.sleep(0)
        handles = ["named/0", "other/0", "unknown/0"]
        attempts.cancel_of(Peer("gateway", "g", "gi"), handles)
        assert [attempt.is_stopped for attempt in made] == [True, False, False]
        assert not attempts.has_ended("unknown/0"), "it may still come"
        await tasks.end(1.0)
