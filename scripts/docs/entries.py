"""What docs/nats.md shows of a subject."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.docs.sample import Sample
from shared.messages import subjects as s
from shared.messages.envelope import Message

ROLES = ("prefill", "decode")
SERVICES = ("gateway", "conductor", "cache-index", "transfer", *ROLES)
Ask = Callable[[Sample], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation. `subjects` have names in angle brackets; without a reply it is plain."""

    subjects: tuple[str, ...]
    text: str
    message: type[Message]
    reply: type[Message] | None = None
    ask: Ask | None = None
    """The example: asked in JSON. None: what is sent while requests are served is shown."""


@dataclass(frozen=True, slots=True)
class Family:
    title: str
    text: str
    entries: tuple[Entry, ...]


def empty(_: Sample) -> dict[str, Any]:
    return {}


def of_roles(operation: str) -> tuple[str, ...]:
    return tuple(s.instance(role, f"<{role}>", operation) for role in ROLES)
