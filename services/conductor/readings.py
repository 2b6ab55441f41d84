"""What a conductor decided and knows, as metrics."""

from collections import Counter
from collections.abc import Callable, Iterator

from shared.messages.conductor import StateReply
from shared.messages.reports import GatewayReport, InstanceReport, NodeReport
from shared.telemetry import metrics
from shared.telemetry.metric import Counts, Histogram, Reading


class Decisions:
    """Counts placements as they are answered."""

    def __init__(self) -> None:
        self._placed = Counts(metrics.PLACEMENTS)
        self._refused = Counts(metrics.PLACEMENT_REFUSALS)
        self._times = Histogram(metrics.PLACEMENT_TIME)
        self.matches_missed_total = 0

    def placed(self, policy: str) -> None:
        self._placed.add(1, policy)

    def refused(self, reason: str) -> None:
        self._refused.add(1, reason)

    def took(self, seconds: float) -> None:
        self._times.observe(seconds)

    def readings(self) -> Iterator[Reading]:
        yield from self._placed.readings()
        yield from self._refused.readings()
        yield from self._times.readings()
        yield metrics.MATCHES_MISSED.of(self.matches_missed_total)


class ConductorReadings:
    """The decisions and the conductor's own state."""

    def __init__(self, decisions: Decisions, state: Callable[[], StateReply]) -> None:
        self._decisions = decisions
        self._state = state

    def readings(self) -> Iterator[Reading]:
        yield from self._decisions.readings()
        state = self._state()
        reports: list[InstanceReport | NodeReport | GatewayReport] = [
            *state.instances,
            *state.nodes,
            *state.gateways,
        ]
        heard = Counter((report.service, report.state) for report in reports)
        for (service, condition), count in heard.items():
            yield metrics.KNOWN_PROCESSES.of(count, service, condition)
        for model, components in state.prediction_errors.items():
            for component, error in components.items():
                yield metrics.PREDICTION_ERROR.of(error.p50, model, component, "p50")
                yield metrics.PREDICTION_ERROR.of(error.p90, model, component, "p90")
                yield metrics.PREDICTION_ERROR.of(error.bias, model, component, "bias")
        if state.replication is not None:
            yield metrics.REPLICA_LEADER.of(state.replication.is_leader)
            yield metrics.REPLICA_COPIES.of(state.replication.copies_total)
            yield metrics.REPLICA_FAILURES.of(state.replication.failed_total)
            yield metrics.REPLICA_BYTES.of(state.replication.moved_bytes_total)
        yield metrics.JOURNAL_LOST.of(state.journal_lost_total)
