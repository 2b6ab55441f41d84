"""What an instance needs of the loop of its role."""

from collections.abc import Sequence
from typing import Literal, Protocol

from shared.messages.common import Ok
from shared.messages.prefill import Cancel, Reserve, ReserveReply
from shared.runtime.errors import ServiceError
from shared.worker.parts import Load
from shared.worker.peer_watch import Peer
from shared.worker.pool_session import PoolSession, Role


class AttemptSet(Protocol):
    """The attempts of a loop, whatever their kind."""

    def __len__(self) -> int: ...

    def peer_gone(self, peer: Peer) -> None: ...

    def stop_all(self, failure: ServiceError) -> None: ...

    async def wait_idle(self) -> None: ...


class WorkerLoop(Protocol):
    """PrefillLoop and DecodeLoop."""

    @property
    def role(self) -> Role: ...

    @property
    def watched_service(self) -> Literal["prefill", "decode"]:
        """The service whose silence ends attempts here."""

    @property
    def attempts(self) -> AttemptSet: ...

    def start(self) -> None:
        """Begin the tasks of the loop."""

    def open(self, session: PoolSession) -> None: ...

    async def give_up_pool(self) -> None:
        """Returns when nothing uses the pool any more."""

    def expire(self, now_s: float) -> None: ...

    def end_lost(self, gateway: Peer, handles: Sequence[str]) -> None:
        """Ends those of these attempts that are this gateway's: it never heard of their places."""

    def load(self) -> Load: ...

    async def reserve(self, message: Reserve) -> ReserveReply: ...

    async def cancel(self, message: Cancel) -> Ok: ...
