"""Asked of one worker process, whatever its role."""

from typing import Literal

from shared.messages.envelope import Message

WorkerRole = Literal["prefill", "decode", "both"]


class SetRole(Message):
    """Drain, then go on in this role. Answered at once; reports tell when it is done."""

    role: WorkerRole
