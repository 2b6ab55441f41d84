"""Every metric of moonpool; no metric name stands anywhere else. What each means: docs/metrics.md.

Names as vLLM, Dynamo and llm-d have them where they have one. Labels have few values: never an id
of a request, a user or a tenant.
"""

from collections.abc import Iterable, Iterator

from shared.telemetry.metric import Metric

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTERVAL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WHOLE_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DECISION_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name, "histogram", text, labels, buckets)


# --- every process -----------------------------------------------------------------------------
BUILD_INFO = _gauge(
    "moonpool_build_info", "1; the labels say what runs", "service", "id", "version"
)
LOOP_LAG = _histogram(
    "moonpool_event_loop_lag_seconds", "How late a timer of the event loop was", LAG_BUCKETS
)
BUS_CONNECTED = _gauge("moonpool_bus_connected", "1 while connected to NATS")
BAD_MESSAGES = _counter("moonpool_bad_messages_total", "Messages on plain subjects that were none")
ENDPOINT_REQUESTS = _counter(
    "moonpool_endpoint_requests_total", "Questions over NATS that ended", "service", "endpoint"
)
ENDPOINT_ERRORS = _counter(
    "moonpool_endpoint_errors_total", "Questions answered with an error", "service", "endpoint"
)
ENDPOINT_SECONDS = _counter(
    "moonpool_endpoint_seconds_total", "Time in handlers", "service", "endpoint"
)
COMMON = (
    BUILD_INFO, LOOP_LAG, BUS_CONNECTED, BAD_MESSAGES,
    ENDPOINT_REQUESTS, ENDPOINT_ERRORS, ENDPOINT_SECONDS,
)  # fmt: skip

# --- gateway -----------------------------------------------------------------------------------
HTTP_RESPONSES = _counter(
    "moonpool_http_responses_total", "HTTP responses begun, by route", "route", "status"
)
REQUESTS = _counter(
    "moonpool_requests_total", "Requests (choices) that ended, by how", "model", "outcome"
)
REFUSALS = _counter("moonpool_refusals_total", "Error answers to clients, by code", "reason")
IN_FLIGHT = _gauge("moonpool_requests_in_flight", "Requests (choices) prepared or running")
RETRIES = _counter("moonpool_request_retries_total", "Attempts after the first one", "model")
TTFT = _histogram(
    "moonpool_time_to_first_token_seconds", "Whole request there to token 0 sent",
    TTFT_BUCKETS, "model",
)  # fmt: skip
ITL = _histogram(
    "moonpool_inter_token_latency_seconds", "Between two tokens of an answer",
    INTERVAL_BUCKETS, "model",
)  # fmt: skip
TBT = _histogram(
    "moonpool_time_between_tokens_seconds", "Mean of the longest tenth of a request's intervals",
    INTERVAL_BUCKETS, "model",
)  # fmt: skip
DURATION = _histogram(
    "moonpool_request_duration_seconds", "Whole request there to its last token",
    WHOLE_BUCKETS, "model",
)  # fmt: skip
QUEUE_TIME = _histogram(
    "moonpool_request_queue_time_seconds", "Waiting at prefill", STAGE_BUCKETS, "model"
)
LOAD_TIME = _histogram(
    "moonpool_request_load_time_seconds", "Bringing cached blocks, from a node or disk",
    STAGE_BUCKETS, "model",
)  # fmt: skip
PREFILL_TIME = _histogram(
    "moonpool_request_prefill_time_seconds", "Computing the prompt", STAGE_BUCKETS, "model"
)
HANDOFF_TIME = _histogram(
    "moonpool_request_handoff_time_seconds", "Token 0 to a place in the decode batch",
    STAGE_BUCKETS, "model",
)  # fmt: skip
DECODE_TIME = _histogram(
    "moonpool_request_decode_time_seconds", "Token 0 to the last token", WHOLE_BUCKETS, "model"
)
PROMPT_TOKENS = _counter("moonpool_prompt_tokens_total", "Of finished requests", "model")
GENERATION_TOKENS = _counter("moonpool_generation_tokens_total", "Of finished requests", "model")
PREFIX_QUERIES = _counter(
    "moonpool_prefix_cache_queries_total", "Prompt tokens that were looked up", "model"
)
PREFIX_HITS = _counter(
    "moonpool_prefix_cache_hits_total", "Prompt tokens that were found cached",
    "model", "source", "tier",
)  # fmt: skip
SLO_REQUESTS = _counter(
    "moonpool_slo_requests_total", "Finished requests that brought a target of their own",
    "target", "met",
)  # fmt: skip
WASTED_PREFILL = _counter(
    "moonpool_wasted_prefill_seconds_total", "Computing prompts that decode then refused", "model"
)
LATE_CHUNKS = _counter("moonpool_late_chunks_total", "Tokens of attempts that were over")
GATEWAY = (
    HTTP_RESPONSES, REQUESTS, REFUSALS, IN_FLIGHT, RETRIES, TTFT, ITL, TBT, DURATION, QUEUE_TIME,
    LOAD_TIME, PREFILL_TIME, HANDOFF_TIME, DECODE_TIME, PROMPT_TOKENS, GENERATION_TOKENS,
    PREFIX_QUERIES, PREFIX_HITS, SLO_REQUESTS, WASTED_PREFILL, LATE_CHUNKS,
)  # fmt: skip

# --- conductor ---------------------------------------------------------------------------------
PLACEMENTS = _counter("moonpool_placements_total", "Attempts that were placed", "policy")
PLACEMENT_REFUSALS = _counter(
    "moonpool_placement_refusals_total", "Attempts that were not placed", "reason"
)
PLACEMENT_TIME = _histogram(
    "moonpool_placement_duration_seconds", "Question to answer, with both reservations",
    DECISION_BUCKETS,
)  # fmt: skip
MATCHES_MISSED = _counter(
    "moonpool_placement_matches_missed_total", "Times that no cache-index answered"
)
KNOWN_PROCESSES = _gauge(
    "moonpool_cluster_processes", "Processes that this conductor hears", "service", "state"
)
PREDICTION_ERROR = _gauge(
    "moonpool_prediction_error_ratio", "Errors of recent predictions, as shares of the real time",
    "model", "component", "statistic",
)  # fmt: skip
REPLICA_LEADER = _gauge("moonpool_replication_leader", "1 while this conductor makes copies")
REPLICA_COPIES = _counter("moonpool_replication_copies_total", "Prefixes copied ahead of need")
REPLICA_FAILURES = _counter("moonpool_replication_failures_total", "Copies that failed")
REPLICA_BYTES = _counter("moonpool_replication_bytes_total", "Moved by copies")
JOURNAL_LOST = _counter("moonpool_journal_lost_total", "Steps that are not in the journal")
CONDUCTOR = (
    PLACEMENTS, PLACEMENT_REFUSALS, PLACEMENT_TIME, MATCHES_MISSED, KNOWN_PROCESSES,
    PREDICTION_ERROR, REPLICA_LEADER, REPLICA_COPIES, REPLICA_FAILURES, REPLICA_BYTES, JOURNAL_LOST,
)  # fmt: skip

# --- cache-index -------------------------------------------------------------------------------
INDEX_REPLICAS = _gauge("moonpool_index_replicas", "Blocks of a node in the mirror", "node")
INDEX_KEYS = _gauge("moonpool_index_keys", "Different blocks in the mirror")
INDEX_BYTES = _gauge("moonpool_index_mirror_bytes", "Memory of the mirror")
INDEX_FILL = _gauge("moonpool_index_mirror_fill_ratio", "Of what its budget allows")
INDEX_EVICTED = _counter("moonpool_index_evicted_total", "Blocks let go for the mirror's budget")
INDEX_REDIS_UP = _gauge("moonpool_index_redis_up", "1 while Redis answers")
INDEX_REDIS_BYTES = _gauge("moonpool_index_redis_bytes", "Memory of Redis")
INDEX_REDIS_EVICTED = _counter("moonpool_index_redis_evicted_total", "Blocks let go in Redis")
INDEX_PENDING = _gauge("moonpool_index_pending_writes", "Fields that wait to be written to Redis")
INDEX_MATCHES = _counter("moonpool_index_matches_total", "Chains that were looked up")
INDEX_EVENTS = _counter("moonpool_index_events_total", "Residency events applied")
INDEX_LATE = _counter("moonpool_index_late_events_total", "Events of an incarnation that is gone")
INDEX_DUPLICATES = _counter("moonpool_index_duplicate_events_total", "Events heard before")
INDEX_GAPS = _counter("moonpool_index_gaps_total", "Times that events of a node were missing")
INDEX_RESYNCS = _counter("moonpool_index_resyncs_total", "Nodes that were read anew")
INDEX_EXPECTED = _gauge("moonpool_index_expected_chains", "Chains that are being computed")
CACHE_INDEX = (
    INDEX_REPLICAS, INDEX_KEYS, INDEX_BYTES, INDEX_FILL, INDEX_EVICTED, INDEX_REDIS_UP,
    INDEX_REDIS_BYTES, INDEX_REDIS_EVICTED, INDEX_PENDING, INDEX_MATCHES, INDEX_EVENTS, INDEX_LATE,
    INDEX_DUPLICATES, INDEX_GAPS, INDEX_RESYNCS, INDEX_EXPECTED,
)  # fmt: skip

# --- transfer ----------------------------------------------------------------------------------
POOL_SLOTS = _gauge("moonpool_pool_slots", "Slots of the pool by state", "state")
POOL_HELD = _gauge("moonpool_pool_held_slots", "Slots that somebody holds")
POOL_PINNED = _gauge("moonpool_pool_pinned_blocks", "Blocks that an operator pinned")
POOL_BYTES = _gauge("moonpool_pool_bytes", "Size of the pool")
POOL_USAGE = _gauge("moonpool_kv_cache_usage_ratio", "Slots that are not free, of all")
POOL_EVICTIONS = _counter("moonpool_kv_evictions_total", "Blocks that left DRAM for want of room")
CHECKSUM_FAILURES = _counter(
    "moonpool_checksum_failures_total", "Blocks whose bytes were not what was sealed"
)
QUARANTINED = _counter("moonpool_quarantined_blocks_total", "Blocks taken out as damaged")
TRANSFER_BYTES = _counter(
    "moonpool_transfer_bytes_total", "KV that came here from other nodes", "transport", "purpose"
)
TRANSFER_TIME = _histogram(
    "moonpool_transfer_duration_seconds", "One fetch or pull, with its waiting",
    STAGE_BUCKETS, "purpose",
)  # fmt: skip
TRANSFER_FAILURES = _counter(
    "moonpool_transfer_failures_total", "Fetches cut short and pulls that failed",
    "purpose", "reason",
)  # fmt: skip
BYTES_IN_FLIGHT = _gauge("moonpool_transfer_bytes_in_flight", "KV on its way here")
LEASES = _gauge("moonpool_leases", "Leases that other nodes hold now")
LEASES_GRANTED = _counter("moonpool_leases_granted_total", "Leases for other nodes")
LEASES_EXPIRED = _counter("moonpool_leases_expired_total", "Leases that ended by time")
ATTACHED = _gauge("moonpool_attached_workers", "Workers on this pool", "role")
RESIDENCY_DROPPED = _counter(
    "moonpool_residency_events_dropped_total", "Events not told to the index; it resyncs"
)
SSD_UP = _gauge("moonpool_ssd_up", "1 while the SSD tier reads and writes")
SSD_SLOTS = _gauge("moonpool_ssd_slots", "Slots of the SSD tier")
SSD_BLOCKS = _gauge("moonpool_ssd_blocks", "Blocks on the SSD")
SSD_READ_BYTES = _counter("moonpool_ssd_read_bytes_total", "Read from the SSD tier")
SSD_WRITTEN_BYTES = _counter("moonpool_ssd_written_bytes_total", "Written to the SSD tier")
SSD_DROPPED = _counter("moonpool_ssd_dropped_writes_total", "Blocks its queue had no room for")
SSD_ERRORS = _counter("moonpool_ssd_errors_total", "Reads and writes that failed")
SSD_BAD_BLOCKS = _counter("moonpool_ssd_bad_blocks_total", "Blocks that came back damaged")
TRANSFER = (
    POOL_SLOTS, POOL_HELD, POOL_PINNED, POOL_BYTES, POOL_USAGE, POOL_EVICTIONS, CHECKSUM_FAILURES,
    QUARANTINED, TRANSFER_BYTES, TRANSFER_TIME, TRANSFER_FAILURES, BYTES_IN_FLIGHT, LEASES,
    LEASES_GRANTED, LEASES_EXPIRED, ATTACHED, RESIDENCY_DROPPED, SSD_UP, SSD_SLOTS, SSD_BLOCKS,
    SSD_READ_BYTES, SSD_WRITTEN_BYTES, SSD_DROPPED, SSD_ERRORS, SSD_BAD_BLOCKS,
)  # fmt: skip

# --- prefill and decode ------------------------------------------------------------------------
RUNNING = _gauge("moonpool_num_requests_running", "Requests at work", "role", "model")
WAITING = _gauge("moonpool_num_requests_waiting", "Requests promised or queued", "role", "model")
WORKER_READY = _gauge("moonpool_instance_ready", "1 while it takes work", "role", "model")
PREFILL_QUEUED_TOKENS = _gauge(
    "moonpool_prefill_queued_tokens", "Prompt tokens promised or queued, not computed yet"
)
PREFILL_EXPECTED_START = _gauge(
    "moonpool_prefill_expected_start_seconds", "When a prompt that comes now would start"
)
PREFILL_TOKENS = _counter("moonpool_prefill_tokens_total", "Prompt tokens computed")
PREFILL_SECONDS = _counter("moonpool_prefill_compute_seconds_total", "Computing prompts")
DECODE_TOKENS = _counter("moonpool_decode_tokens_total", "Tokens sampled by decode steps")
DECODE_STEPS = _counter("moonpool_decode_steps_total", "Steps of the batch")
DECODE_SECONDS = _counter("moonpool_decode_compute_seconds_total", "Computing steps")
DECODE_CAPACITY = _gauge("moonpool_decode_capacity_tokens", "Room of the device cache")
DECODE_FREE = _gauge("moonpool_decode_free_tokens", "Room that is not promised")
DECODE_CONTEXT = _gauge("moonpool_decode_context_tokens", "Context of all in the batch")
DECODE_PREEMPTED = _gauge("moonpool_decode_preempted", "Requests put out for want of room")
DECODE_SAVED = _gauge("moonpool_decode_saved_tokens", "KV of them in host memory")
PREEMPTIONS = _counter("moonpool_num_preemptions_total", "Times that a request was put out")
DECODE_REFUSED = _counter(
    "moonpool_decode_refused_total", "Requests that decode refused when their prefill was done"
)
WORKER = (RUNNING, WAITING, WORKER_READY)
PREFILL = (
    *WORKER, PREFILL_QUEUED_TOKENS, PREFILL_EXPECTED_START, PREFILL_TOKENS, PREFILL_SECONDS,
)  # fmt: skip
DECODE = (
    *WORKER, DECODE_TOKENS, DECODE_STEPS, DECODE_SECONDS, DECODE_CAPACITY, DECODE_FREE,
    DECODE_CONTEXT, DECODE_PREEMPTED, DECODE_SAVED, PREEMPTIONS, DECODE_REFUSED,
)  # fmt: skip

OF_SERVICE: dict[str, tuple[Metric, ...]] = {
    "common": COMMON,
    "gateway": GATEWAY,
    "conductor": CONDUCTOR,
    "cache-index": CACHE_INDEX,
    "transfer": TRANSFER,
    "prefill": PREFILL,
    "decode": DECODE,
}


def of_services(services: Iterable[str]) -> Iterator[Metric]:
    """What a process with these parts shows, each once, in the order of this file."""
    wanted = {"common", *services}
    seen: set[str] = set()
    for service, declared in OF_SERVICE.items():
        for metric in declared if service in wanted else ():
            if metric.name not in seen:
                seen.add(metric.name)
                yield metric
