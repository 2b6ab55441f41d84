"""Who may send and hear what on the bus: the subject permissions of each service's NATS user.

Made of the functions of `subjects` only, so that a subject has one home and one list of users.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.messages import subjects

ANY = "*"
INSTANCES = ("prefill", "decode")
ADMIN = "admin"
"""The operator: the launcher, the CLI, the nats CLI."""


@dataclass(frozen=True, slots=True)
class Access:
    """Subjects with wildcards. An answer to what was heard is always allowed."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def _of_instances(*operations: str, roles: Iterable[str] = INSTANCES) -> tuple[str, ...]:
    return tuple(subjects.instance(role, ANY, name) for role in roles for name in operations)


def _of_nodes(*operations: str) -> tuple[str, ...]:
    return tuple(subjects.transfer(ANY, name) for name in operations)


def _reports(*services: str) -> tuple[str, ...]:
    return tuple(subjects.report(service, ANY) for service in services)


def _service(
    name: str, *, publish: tuple[str, ...] = (), subscribe: tuple[str, ...] = ()
) -> Access:
    """With what every service does: it is a micro service, pings itself, waits for answers."""
    ping = subjects.ping(name, ANY)
    hears = (*subscribe, ping, subjects.MICRO_ALL, f"{subjects.inbox(name)}.>")
    return Access(tuple(dict.fromkeys((*publish, ping))), tuple(dict.fromkeys(hears)))


# A worker's role may change while it lives, so both roles may do what either does.
_WORKER_SENDS = (
    subjects.INDEX_CLAIM_FORMAT,
    subjects.INDEX_EXPECTED,
    subjects.gateway_tokens_all(ANY),
    *_of_instances("kv", "judge", "handoff", "cancel", roles=("decode",)),
    *_of_instances("ping"),
    *_reports(*INSTANCES),
)
_WORKER_HEARS = (
    *_reports("gateway", *INSTANCES),
    *_of_instances("reserve", "run", "cancel", "role", "drain", "ping"),
    *_of_instances("kv", "judge", "handoff", roles=("decode",)),
)

# What the dashboard of a gateway asks while somebody looks at it.
_WATCHER_ASKS = (
    subjects.MICRO_PING,
    subjects.CONDUCTOR_STATE,
    subjects.INDEX_STATS,
    subjects.INDEX_HOT,
    subjects.gateway_recent(ANY),
)

ACCESS: dict[str, Access] = {
    "gateway": _service(
        "gateway",
        publish=(
            subjects.CONDUCTOR_PLACE,
            subjects.CONDUCTOR_EXPLAIN,
            subjects.CONDUCTOR_MODELS,
            subjects.CONDUCTOR_OUTCOMES,
            *_of_instances("run", "cancel", "ping"),
            *_reports("gateway"),
            subjects.FINISHED_BILLS,
            subjects.trace(ANY),
            *_WATCHER_ASKS,
        ),
        subscribe=(
            *_reports("gateway", "transfer", *INSTANCES),
            subjects.gateway_tokens_all(ANY),
            subjects.gateway_bill(ANY),
            subjects.gateway_recent(ANY),
        ),
    ),
    "conductor": _service(
        "conductor",
        publish=(
            subjects.INDEX_MATCH,
            subjects.INDEX_HOLDERS,
            subjects.INDEX_LEAD,
            subjects.CONDUCTOR_ASKED,
            subjects.CONDUCTOR_MISSES,
            *_of_instances("reserve", "cancel"),
            *_of_nodes("replicate", "drop"),
        ),
        subscribe=(
            subjects.CONDUCTOR_CHANGE_REPLICA,
            subjects.CONDUCTOR_PLACE,
            subjects.CONDUCTOR_EXPLAIN,
            subjects.CONDUCTOR_STATE,
            subjects.CONDUCTOR_MODELS,
            subjects.CONDUCTOR_ASKED,
            subjects.CONDUCTOR_MISSES,
            subjects.CONDUCTOR_OUTCOMES,
            *_reports("gateway", "transfer", *INSTANCES),
            subjects.FINISHED_BILLS,
        ),
    ),
    "cache-index": _service(
        "cache-index",
        publish=(subjects.INDEX_NODE_SEEN, subjects.INDEX_HEAT, *_of_nodes("inventory")),
        subscribe=(
            subjects.INDEX_MATCH,
            subjects.INDEX_HOT,
            subjects.INDEX_HOLDERS,
            subjects.INDEX_COPIES,
            subjects.INDEX_LEAD,
            subjects.INDEX_EXPECTED,
            subjects.INDEX_HEAT,
            *(subjects.cache_index(ANY, name) for name in ("stats", "contents", "prints")),
            subjects.INDEX_REGISTER_NODE,
            subjects.INDEX_RENEW_NODE,
            subjects.INDEX_CLAIM_FORMAT,
            subjects.INDEX_STATS,
            subjects.INDEX_EVENTS_ALL,
            subjects.INDEX_NODE_SEEN,
        ),
    ),
    "transfer": _service(
        "transfer",
        publish=(
            subjects.INDEX_REGISTER_NODE,
            subjects.INDEX_RENEW_NODE,
            subjects.INDEX_COPIES,
            subjects.index_events(ANY),
            # A node that leaves asks who could take its blocks over.
            subjects.CONDUCTOR_STATE,
            subjects.CONDUCTOR_OUTCOMES,
            subjects.INDEX_MATCH,
            *_of_nodes("describe", "lease", "release", "replicate"),
            *_reports("transfer"),
        ),
        subscribe=(
            *_of_nodes("describe", "lease", "release", "inventory"),
            *_of_nodes("pin", "drop", "replicate", "flush", "drain"),
        ),
    ),
    "prefill": _service("prefill", publish=_WORKER_SENDS, subscribe=_WORKER_HEARS),
    "decode": _service("decode", publish=_WORKER_SENDS, subscribe=_WORKER_HEARS),
}
"""By the name of the service; the operator (`ADMIN`) may do everything."""
SERVICES = tuple(ACCESS)


def covers(pattern: str, subject: str) -> bool:
    """Whether what `subject` names is all within `pattern`; both may have wildcards."""
    wanted, allowed = subject.split("."), pattern.split(".")
    for index, token in enumerate(allowed):
        if token == ">":
            return len(wanted) > index
        if index >= len(wanted) or wanted[index] == ">":
            return False
        if token not in ("*", wanted[index]):
            return False
    return len(wanted) == len(allowed)
