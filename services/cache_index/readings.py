"""What a cache-index knows and has seen, as metrics."""

from collections.abc import Iterator

from shared.messages.index import IndexStats
from shared.telemetry import metrics
from shared.telemetry.metric import Reading


def readings_of(stats: IndexStats) -> Iterator[Reading]:
    for node, num_blocks in stats.nodes.items():
        yield metrics.INDEX_REPLICAS.of(num_blocks, node)
    yield metrics.INDEX_KEYS.of(stats.num_keys)
    yield metrics.INDEX_BYTES.of(stats.mirror_bytes)
    yield metrics.INDEX_FILL.of(stats.mirror_fill)
    yield metrics.INDEX_EVICTED.of(stats.evicted_total)
    yield metrics.INDEX_REDIS_UP.of(stats.is_redis_up)
    if stats.redis_bytes is not None:
        yield metrics.INDEX_REDIS_BYTES.of(stats.redis_bytes)
    yield metrics.INDEX_REDIS_EVICTED.of(stats.redis_evicted_total)
    yield metrics.INDEX_PENDING.of(stats.num_pending)
    yield metrics.INDEX_MATCHES.of(stats.matches_total)
    yield metrics.INDEX_EVENTS.of(stats.events_total)
    yield metrics.INDEX_LATE.of(stats.late_events_total)
    yield metrics.INDEX_DUPLICATES.of(stats.duplicates_total)
    yield metrics.INDEX_GAPS.of(stats.gaps_total)
    yield metrics.INDEX_RESYNCS.of(stats.resyncs_total)
    yield metrics.INDEX_EXPECTED.of(stats.num_expected)
