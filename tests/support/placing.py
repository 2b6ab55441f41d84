"""Builders of what the conductor's core sees, and a driver that answers its effects."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.effects import AnswerPlaced, AnswerRefused, Effect, SendRelease, SendReserve
from shared.scheduling.events import Event, InstanceReported, PlaceAsked, ReserveAnswered
from shared.scheduling.journal import to_line
from shared.scheduling.vocabulary import InstanceView, NodeMatch, PlacementRequest, Role

MODEL = "m"
ROOT = b"r" * 16
BLOCK_TOKENS = 16
GRID_TOKENS = 32
BLOCK_BYTES = 1 << 20


def instance(role: Role, name: str, node: str, **changes: Any) -> InstanceView:
    values: dict[str, Any] = {
        "incarnation": f"{name}-1",
        "node_incarnation": f"{node}-1",
        "state": "ready",
        "model": MODEL,
        "root": ROOT,
        "kv_format": {},
        "block_tokens": BLOCK_TOKENS,
        "grid_tokens": GRID_TOKENS,
        "block_bytes": BLOCK_BYTES,
        "context_tokens": 8_192,
        "free_tokens": 100_000,
        "capacity_tokens": 100_000,
    }
    return InstanceView(role=role, id=name, node=node, **(values | changes))


def request(num_tokens: int = 1_000, **changes: Any) -> PlacementRequest:
    values: dict[str, Any] = {
        "request_id": "r",
        "attempt": 0,
        "gateway": "g",
        "gateway_incarnation": "g-1",
        "model": MODEL,
        "num_tokens": num_tokens,
        "max_tokens": 100,
        "chain": bytes(16) * (num_tokens // BLOCK_TOKENS),
    }
    return PlacementRequest(**(values | changes))


def match(node: str, num_blocks: int) -> NodeMatch:
    return NodeMatch(node, f"{node}-1", num_blocks)


class Driven:
    """A core whose reservations are answered at once by `accepts`; keeps a journal."""

    def __init__(
        self,
        instances: Iterable[InstanceView],
        *,
        seed: int = 0,
        accepts: Callable[[SendReserve], bool] = lambda _: True,
        **settings: Any,
    ) -> None:
        self.settings = CoreSettings(**settings)
        self.seed = seed
        self.core = ConductorCore(self.settings, random.Random(seed))
        self.accepts = accepts
        self.now_s = 0.0
        self.journal: list[str] = []
        self.effects: list[Effect] = []
        self._next_id = 0
        for one in instances:
            self.feed(InstanceReported(one))

    def feed(self, event: Event) -> list[Effect]:
        effects = self.core.on_event(event, self.now_s)
        self.journal.append(to_line(self.now_s, event, effects))
        self.effects.extend(effects)
        self.core.check_integrity()
        return effects

    def place(self, asked: PlacementRequest, *matches: NodeMatch) -> AnswerPlaced | AnswerRefused:
        """The answer, with every reservation answered in the order it was asked for."""
        self._next_id += 1
        waiting = self.feed(PlaceAsked(self._next_id, asked, matches))
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, AnswerPlaced | AnswerRefused):
                assert not any(isinstance(e, SendReserve) for e in waiting)
                return effect
            if isinstance(effect, SendReserve):
                waiting.extend(self.feed(self.answer(effect, is_accepted=self.accepts(effect))))
        raise AssertionError("the core left a placement without an answer")

    @staticmethod
    def answer(effect: SendReserve, *, is_accepted: bool, start_s: float = 0.0) -> ReserveAnswered:
        """An instance that is given a run starts it."""
        return ReserveAnswered(
            effect.place_id,
            effect.role,
            effect.instance,
            is_accepted,
            expected_start_s=start_s,
            has_run=effect.role == "prefill" and is_accepted and effect.request.has_run,
        )

    @property
    def reserved(self) -> list[SendReserve]:
        return [effect for effect in self.effects if isinstance(effect, SendReserve)]

    @property
    def released(self) -> list[SendRelease]:
        return [effect for effect in self.effects if isinstance(effect, SendRelease)]
