"""One line of JSON for one step of the core: (time, event, effects), and back. Pure text.

Replaying a journal through a fresh core with the same settings and seed gives the same effects.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from shared.scheduling import effects as effect_types
from shared.scheduling import events as event_types
from shared.scheduling import quarantine, slo, vocabulary
from shared.scheduling.effects import Effect
from shared.scheduling.events import Event

_TYPES = {
    name: kind
    for module in (slo, vocabulary, quarantine, event_types, effect_types)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and is_dataclass(kind)
}


@dataclass(frozen=True, slots=True)
class Step:
    now_s: float
    event: Event
    effects: tuple[Effect, ...]


def to_line(now_s: float, event: Event, effects: Sequence[Effect]) -> str:
    step = {"now_s": now_s, "event": _plain(event), "effects": [_plain(e) for e in effects]}
    return json.dumps(step, separators=(",", ":"))


def from_line(line: str) -> Step:
    """Raises ValueError for a line that is not a step."""
    try:
        step = json.loads(line)
        return Step(step["now_s"], _value(step["event"]), tuple(map(_value, step["effects"])))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a step of a journal: {error!r}") from error


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return {"$": type(value).__name__, **named}
    if isinstance(value, bytes):
        return {"$": "bytes", "hex": value.hex()}
    if isinstance(value, Mapping):
        return {"$": "map", "items": {str(name): _plain(one) for name, one in value.items()}}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_value(one) for one in plain)
    if not isinstance(plain, dict):
        return plain
    kind = plain["$"]
    if kind == "bytes":
        return bytes.fromhex(plain["hex"])
    if kind == "map":
        return {name: _value(one) for name, one in plain["items"].items()}
    values = {name: _value(one) for name, one in plain.items() if name != "$"}
    return _TYPES[kind](**values)
