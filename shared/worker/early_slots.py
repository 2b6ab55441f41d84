"""Slots that a prompt asks for while its run is on the way, so that computing waits for no answer.

Only where nobody is before it, and for one prompt of an instance at a time: all its slots or none,
and it waits for none. A prompt that turns out to wait gives them back: who waits holds none.
"""

import asyncio

from shared.messages.common import ErrorCode
from shared.messages.pool import AllocateReply
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.worker.pool_client import PoolClient

ASK_AFTER_S = 0.001
"""The answer to the reservation goes first: others wait for it, and may share the cores."""


class EarlySlots:
    """Soon asked for, then perhaps not answered yet."""

    def __init__(self, tasks: Tasks, pool: PoolClient, handle: str, num_slots: int) -> None:
        self.num_slots = num_slots
        self._tasks = tasks
        self._pool = pool
        self._handle = handle
        self._asking: asyncio.Task[AllocateReply | ServiceError] | None = None
        self._timer = asyncio.get_running_loop().call_later(ASK_AFTER_S, self._ask)

    @property
    def is_asked(self) -> bool:
        """Something may be held."""
        return self._asking is not None

    async def given(self) -> AllocateReply | None:
        """None: not asked for yet, or there were too few. Raises what else the pool answered."""
        self._timer.cancel()
        answer = None if self._asking is None else await self._asking
        if answer is None or isinstance(answer, AllocateReply):
            return answer
        if answer.code != ErrorCode.OVERLOADED:
            raise answer
        return None

    def forget(self) -> None:
        """Nobody looks at the answer; what was given is held until the handle is released."""
        self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self) -> None:
        name = f"early slots {self._handle}"
        self._asking = self._tasks.start_soon(self._answer(), name=name)

    async def _answer(self) -> AllocateReply | ServiceError:
        """The error as a value: whoever wants the slots raises it."""
        try:
            return await self._pool.allocate(self._handle, self.num_slots)
        except ServiceError as error:
            return error
