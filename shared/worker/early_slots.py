"""Slots that a prompt asks for while its run is on the way, so that computing waits for no answer.

Only where nobody is before it, and for one prompt of an instance at a time: all its slots or none,
and it waits for none. A prompt that turns out to wait gives them back: who waits holds none.
"""

from shared.messages.common import ErrorCode
from shared.messages.pool import AllocateReply
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.worker.pool_client import PoolClient


class EarlySlots:
    """Asked for; perhaps not answered yet."""

    def __init__(self, tasks: Tasks, pool: PoolClient, handle: str, num_slots: int) -> None:
        self.num_slots = num_slots
        asking = _ask(pool, handle, num_slots)
        self._asking = tasks.start_soon(asking, name=f"early slots {handle}")

    async def given(self) -> AllocateReply | None:
        """None: there were too few. Raises what else the pool answered."""
        answer = await self._asking
        if isinstance(answer, AllocateReply):
            return answer
        if answer.code != ErrorCode.OVERLOADED:
            raise answer
        return None

    def forget(self) -> None:
        """Nobody looks at the answer; what was given is held until the handle is released."""
        self._asking.cancel()


async def _ask(pool: PoolClient, handle: str, num_slots: int) -> AllocateReply | ServiceError:
    """The error as a value: whoever wants the slots raises it."""
    try:
        return await pool.allocate(handle, num_slots)
    except ServiceError as error:
        return error
