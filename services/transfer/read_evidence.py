"""What reads from other nodes came to, for the conductors, who judge the nodes by it."""

from shared.messages.common import ErrorCode, NodeRef
from shared.runtime.errors import ServiceError
from shared.runtime.outcome_reporter import OutcomeReporter

BASE_S = 0.02
BYTES_PER_S = 200e6
"""What a read is expected to take; only its ratio to that of other nodes counts."""
MIN_TRIED_S = 1.0
"""A read that had less time than that says nothing when it was not done in time."""
_NOT_ITS_FAULT = frozenset(
    {
        ErrorCode.NO_INSTANCE,
        ErrorCode.VOID_INCARNATION,
        ErrorCode.PEER_LOST,
        ErrorCode.FORMAT_MISMATCH,
        ErrorCode.BAD_REQUEST,
        ErrorCode.KV_LOST,
        ErrorCode.DRAINING,
    }
)
"""It is gone, was started anew, or has not what it was asked for."""


class ReadEvidence:
    """Without a reporter (in benches) nothing is told."""

    def __init__(self, reporter: OutcomeReporter | None = None) -> None:
        self._reporter = reporter

    def good(self, node: NodeRef, took_s: float, num_bytes: int) -> None:
        """`num_bytes` came from there alone; 0: not known."""
        expected_s = BASE_S + num_bytes / BYTES_PER_S if num_bytes else 0.0
        self._note(node, is_good=True, took_s=took_s, expected_s=expected_s)

    def bad(self, node: NodeRef, error: Exception, tried_s: float) -> None:
        if isinstance(error, ServiceError) and error.code in _NOT_ITS_FAULT:
            return
        is_late = isinstance(error, TimeoutError) or (
            isinstance(error, ServiceError) and error.code == ErrorCode.DEADLINE
        )
        if not is_late or tried_s >= MIN_TRIED_S:
            self._note(node, is_good=False)

    def _note(
        self, node: NodeRef, *, is_good: bool, took_s: float = 0.0, expected_s: float = 0.0
    ) -> None:
        if self._reporter is not None:
            self._reporter.note(
                "transfer",
                node.id,
                node.incarnation,
                is_good=is_good,
                took_s=took_s,
                expected_s=expected_s,
            )
