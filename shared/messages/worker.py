"""Asked of one worker process, whatever its role."""

from typing import Literal

from shared.messages.envelope import Message
from shared.messages.reports import State

WorkerRole = Literal["prefill", "decode", "both"]


class SetRole(Message):
    """Drain, then go on in this role. Answered at once; reports tell when it is done."""

    role: WorkerRole


class Drain(Message):
    """Operator: promise no more room and finish what runs; `is_over`: promise again.

    Answered at once; reports tell when nothing runs any more. Another role ends it too. The field
    must be there, so that an empty message drains nobody.
    """

    is_over: bool


class DrainReply(Message):
    state: State
    """`starting` and `draining` may have other reasons: no pool, or the process stops."""
