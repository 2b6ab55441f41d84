"""The one subscription for the tokens of all requests of this gateway, handed on by request."""

from collections.abc import Callable

from shared.messages import subjects
from shared.messages.tokens import TokenChunk
from shared.runtime.bus import Bus


class TokenInbox:
    """Owns who waits for which request. Chunks that nobody waits for are late: dropped."""

    def __init__(self, bus: Bus, gateway: str, incarnation: str) -> None:
        self._bus = bus
        self._gateway = gateway
        self._incarnation = incarnation
        self._receivers: dict[str, Callable[[TokenChunk], None]] = {}
        self.late_chunks_total = 0

    async def start(self) -> None:
        subject = subjects.gateway_tokens_all(self._gateway)
        await self._bus.subscribe(subject, TokenChunk, self.deliver, is_acknowledged=True)

    def open(self, request_id: str, receiver: Callable[[TokenChunk], None]) -> None:
        self._receivers[request_id] = receiver

    def close(self, request_id: str) -> None:
        self._receivers.pop(request_id, None)

    def deliver(self, chunk: TokenChunk) -> bool:
        """False: it is for another incarnation under our name, which drains or is gone."""
        if chunk.ref.gateway_incarnation != self._incarnation:
            return False
        receiver = self._receivers.get(chunk.ref.request_id)
        if receiver is None:
            self.late_chunks_total += 1
            return True
        receiver(chunk)
        return True
