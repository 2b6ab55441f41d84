"""Every subject that `shared/messages/subjects.py` can make, with * for ids."""

import inspect
from collections.abc import Iterator

from shared.messages import subjects
from shared.messages.access import SERVICES

# Prefixes, protocols of NATS itself, and what only the operator asks for.
# BENCH_BARE is on a NATS of its own.
NO_SUBJECTS = {
    "BENCH_BARE",
    "MICRO_ALL",
    "MICRO_PING",
    "MICRO_INFO",
    "MICRO_STATS",
    "PREFIX",
    "QUEUE_GROUP",
    "REPORTS_ALL",
    "inbox",
}
ROLES = ("prefill", "decode")
# Functions of more than ids, with what they are called with.
CALLS: dict[str, list[tuple[str, ...]]] = {
    "report": [(service, "*") for service in ("gateway", "transfer", *ROLES)],
    "ping": [(service, "*") for service in SERVICES],
    "instance": [
        *((role, "*", name) for role in ROLES for name in ("reserve", "run", "cancel", "ping")),
        *((role, "*", name) for role in ROLES for name in ("role", "drain")),
        *(("decode", "*", name) for name in ("kv", "judge", "handoff")),
    ],
    "cache_index": [("*", name) for name in ("stats", "contents", "prints")],
    "transfer": [
        *(("*", name) for name in ("describe", "lease", "release", "inventory")),
        *(("*", name) for name in ("pin", "drop", "replicate", "flush", "drain")),
    ],
}


def all_subjects() -> Iterator[tuple[str, str]]:
    """(name in the module, subject with wildcards) of everything in it."""
    for name, value in vars(subjects).items():
        if name.startswith("_") or name in NO_SUBJECTS:
            continue
        if isinstance(value, str) and name.isupper():
            yield name, value
        elif inspect.isfunction(value):
            ids = ("*",) * len(inspect.signature(value).parameters)
            for arguments in CALLS.get(name, [ids]):
                yield name, value(*arguments)
