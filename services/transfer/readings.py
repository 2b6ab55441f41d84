"""A node's report and its traffic as metrics."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from services.transfer.node import Node
from services.transfer.peer_handlers import PeerHandlers
from services.transfer.residency_publisher import ResidencyPublisher
from shared.messages.reports import NodeReport
from shared.telemetry import metrics
from shared.telemetry.metric import Reading

SSD_UP = ("on", "read_only")


@dataclass(frozen=True, slots=True)
class NodeReadings:
    """Reads what the parts keep; owns nothing."""

    report: Callable[[], NodeReport]
    node: Node
    handlers: PeerHandlers
    publisher: ResidencyPublisher
    workers: Callable[[], Mapping[str, int]]

    def readings(self) -> Iterator[Reading]:
        report = self.report()
        yield from _pool(report)
        yield from _ssd(report)
        formatted = self.node.formatted
        if formatted is not None:
            yield metrics.QUARANTINED.of(formatted.pool.blocks.counts.quarantined_total)
            yield from formatted.fetcher.traffic.readings()
            yield from formatted.puller.traffic.readings()
        yield metrics.BYTES_IN_FLIGHT.of(report.bytes_in_flight)
        yield metrics.LEASES.of(self.handlers.num_leases)
        yield metrics.LEASES_GRANTED.of(self.handlers.granted_total)
        yield metrics.LEASES_EXPIRED.of(self.handlers.expired_total)
        yield metrics.RESIDENCY_DROPPED.of(self.publisher.dropped_total)
        for role, count in self.workers().items():
            yield metrics.ATTACHED.of(count, role)


def _pool(report: NodeReport) -> Iterator[Reading]:
    total = report.slots_total
    yield metrics.POOL_BYTES.of(total * report.block_bytes)
    yield metrics.POOL_SLOTS.of(report.slots_free, "free")
    yield metrics.POOL_SLOTS.of(report.slots_writing, "writing")
    yield metrics.POOL_SLOTS.of(report.slots_private, "private")
    yield metrics.POOL_SLOTS.of(report.slots_sealed, "sealed")
    yield metrics.POOL_USAGE.of(1 - report.slots_free / total if total else 0.0)
    yield metrics.POOL_HELD.of(report.slots_leased)
    yield metrics.POOL_PINNED.of(report.pinned_blocks)
    yield metrics.POOL_EVICTIONS.of(report.evictions_total)
    yield metrics.CHECKSUM_FAILURES.of(report.checksum_failures_total)


def _ssd(report: NodeReport) -> Iterator[Reading]:
    """Nothing of a node without one."""
    if report.ssd_state == "none":
        return
    yield metrics.SSD_UP.of(report.ssd_state in SSD_UP)
    yield metrics.SSD_SLOTS.of(report.ssd_slots_total)
    yield metrics.SSD_BLOCKS.of(report.ssd_blocks)
    yield metrics.SSD_READ_BYTES.of(report.ssd_bytes_read_total)
    yield metrics.SSD_WRITTEN_BYTES.of(report.ssd_bytes_written_total)
    yield metrics.SSD_DROPPED.of(report.ssd_dropped_total)
    yield metrics.SSD_ERRORS.of(report.ssd_errors_total)
    yield metrics.SSD_BAD_BLOCKS.of(report.ssd_bad_blocks_total)
