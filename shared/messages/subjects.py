"""Every NATS subject of moonpool; no subject string stands anywhere else.

Names on the wire: `moonpool.<service>.<operation>` is answered by one of a queue group,
`moonpool.<service>.<id>.<operation>` by that very process.
"""

PREFIX = "moonpool"
QUEUE_GROUP = "q"

# --- conductor (queue group) -------------------------------------------------------------------
CONDUCTOR_PLACE = f"{PREFIX}.conductor.place"
CONDUCTOR_EXPLAIN = f"{PREFIX}.conductor.explain"
CONDUCTOR_STATE = f"{PREFIX}.conductor.state"
CONDUCTOR_CHANGE_REPLICA = f"{PREFIX}.conductor.change_replica"
CONDUCTOR_MODELS = f"{PREFIX}.conductor.models"
CONDUCTOR_ASKED = f"{PREFIX}.conductor.asked"
CONDUCTOR_MISSES = f"{PREFIX}.conductor.misses"
CONDUCTOR_OUTCOMES = f"{PREFIX}.conductor.outcomes"

# --- cache-index -------------------------------------------------------------------------------
INDEX_MATCH = f"{PREFIX}.index.match"
INDEX_REGISTER_NODE = f"{PREFIX}.index.register_node"
INDEX_RENEW_NODE = f"{PREFIX}.index.renew_node"
INDEX_CLAIM_FORMAT = f"{PREFIX}.index.claim_format"
INDEX_STATS = f"{PREFIX}.index.stats"
INDEX_EVENTS_ALL = f"{PREFIX}.index.events.*"
INDEX_NODE_SEEN = f"{PREFIX}.index.node_seen"
INDEX_HOT = f"{PREFIX}.index.hot"
INDEX_HOLDERS = f"{PREFIX}.index.holders"
INDEX_EXPECTED = f"{PREFIX}.index.expected"
INDEX_HEAT = f"{PREFIX}.index.heat"
INDEX_LEAD = f"{PREFIX}.index.lead"
INDEX_COPIES = f"{PREFIX}.index.copies"

# --- plain subscriptions -----------------------------------------------------------------------
REPORTS_ALL = f"{PREFIX}.report.>"
FINISHED_BILLS = f"{PREFIX}.bills"

# --- measuring ---------------------------------------------------------------------------------
BENCH_BARE = f"{PREFIX}.bench.bare"

# --- NATS' own service protocol ----------------------------------------------------------------
MICRO_PING = "$SRV.PING"
MICRO_INFO = "$SRV.INFO"
MICRO_STATS = "$SRV.STATS"
MICRO_ALL = "$SRV.>"


def cache_index(index: str, operation: str) -> str:
    """stats, contents, prints: asked of one cache-index."""
    return f"{PREFIX}.cache-index.{index}.{operation}"


def index_events(node: str) -> str:
    """Residency events of one node; every cache-index subscribes to all."""
    return f"{PREFIX}.index.events.{node}"


def report(service: str, instance: str) -> str:
    """Heartbeats with the state of one process (prefill, decode, transfer, gateway)."""
    return f"{PREFIX}.report.{service}.{instance}"


def transfer(node: str, operation: str) -> str:
    """Asked of one node's transfer: describe, lease, release, inventory; of operators pin, drop,
    replicate, flush, drain."""
    return f"{PREFIX}.transfer.{node}.{operation}"


def instance(service: str, instance_id: str, operation: str) -> str:
    """reserve, run, cancel, kv, judge, handoff, role, drain: asked of one prefill or decode
    instance."""
    return f"{PREFIX}.{service}.{instance_id}.{operation}"


def gateway_tokens(gateway: str, request: str, attempt: int) -> str:
    """Where the tokens of one attempt go; each attempt has its own subject."""
    return f"{PREFIX}.gateway.{gateway}.tokens.{request}.{attempt}"


def gateway_tokens_all(gateway: str) -> str:
    return f"{PREFIX}.gateway.{gateway}.tokens.*.*"


def gateway_bill(gateway: str) -> str:
    return f"{PREFIX}.gateway.{gateway}.bill"


def gateway_recent(gateway: str) -> str:
    """Requests that ended of late at this gateway, with decisions and bills."""
    return f"{PREFIX}.gateway.{gateway}.recent"


def trace(request: str) -> str:
    """JSON events of one request's life, sent when the request asks for it."""
    return f"{PREFIX}.trace.{request}"


def ping(service: str, instance_id: str) -> str:
    """Liveness of one process: no responder means that it is gone."""
    return f"{PREFIX}.{service}.{instance_id}.ping"


def inbox(service: str) -> str:
    """Where answers to a service's questions go; nobody else may listen there."""
    return f"_INBOX.{service}"
