"""What came here from other nodes, by what it was for and what moved it; what failed, and why."""

from collections.abc import Iterator, Mapping

from shared.runtime.errors import ServiceError
from shared.telemetry import metrics
from shared.telemetry.metric import Counts, Histogram, Reading
from shared.transport.base import PeerLost


class Traffic:
    """Bytes, times and failures. Purposes: request (a prefix for a prompt), background (a copy),
    stream (KV of a prompt for its decode)."""

    def __init__(self) -> None:
        self._bytes = Counts(metrics.TRANSFER_BYTES)
        self._times = Histogram(metrics.TRANSFER_TIME)
        self._failures = Counts(metrics.TRANSFER_FAILURES)

    def moved(self, purpose: str, by_transport: Mapping[str, int], seconds: float) -> None:
        """One call came to its end; nothing is counted of one that moved nothing."""
        for transport, num_bytes in by_transport.items():
            self._bytes.add(num_bytes, transport, purpose)
        if by_transport:
            self._times.observe(seconds, purpose)

    def failed(self, purpose: str, error: ServiceError | PeerLost | TimeoutError) -> None:
        self._failures.add(1, purpose, _reason(error))

    def num_bytes(self) -> int:
        """All that moved."""
        return int(self._bytes.total())

    def readings(self) -> Iterator[Reading]:
        yield from self._bytes.readings()
        yield from self._times.readings()
        yield from self._failures.readings()


def _reason(error: ServiceError | PeerLost | TimeoutError) -> str:
    match error:
        case ServiceError():
            return str(error.code)
        case PeerLost():
            return "peer_lost"
        case _:
            return "deadline"
