"""Whether instances have forgotten a request: alive, but idle for long. Pure."""

from services.gateway.life_events import Stage

DECODE_IDLE_S = 2.0
"""Decode has sent tokens, and now says that it has no work: its last message was lost."""
BOTH_IDLE_S = 12.0
"""Nothing from decode yet: a hand-over may be under way that neither counts as work."""


class IdleEvidence:
    """Since when each stage has said in every report that it has no work."""

    def __init__(self) -> None:
        self._stages: tuple[Stage, ...] = ()
        self._idle_since_s: dict[Stage, float] = {}

    def begin_attempt(self, stages: tuple[Stage, ...]) -> None:
        """It runs at an instance of each of these."""
        self._stages = stages
        self.reset()

    def reset(self) -> None:
        """The attempt shows life."""
        self._idle_since_s.clear()

    def is_forgotten(self, stage: Stage, is_idle: bool, decode_began: bool, now_s: float) -> bool:
        """Note a report; true when the reports so far leave no other explanation."""
        if not is_idle:
            self._idle_since_s.pop(stage, None)
            return False
        self._idle_since_s.setdefault(stage, now_s)
        if decode_began:
            return self._idle_s("decode", now_s) >= DECODE_IDLE_S
        return min(self._idle_s(one, now_s) for one in self._stages) >= BOTH_IDLE_S

    def _idle_s(self, stage: Stage, now_s: float) -> float:
        return now_s - self._idle_since_s.get(stage, now_s)
