"""A decode instance in virtual time: continuous batching, room for KV, the times of every token.

Between two changes of the batch all steps are taken at once; a newcomer joins at the next step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.scheduling.slo import LONGEST_SHARE
from shared.simulator.event_loop import EventLoop
from shared.simulator.hardware import Hardware

K = 1024.0


@dataclass(slots=True)
class Sequence:
    tokens_left: int
    context_tokens: int
    token_s: float
    """When its last token was given, until it is in the batch: token 0."""
    on_done: Callable[[float], None]
    intervals: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, how many steps took so long)."""


class VirtualDecode:
    def __init__(self, instance_id: str, hardware: Hardware, loop: EventLoop) -> None:
        self.id = instance_id
        self.hardware = hardware
        self._loop = loop
        self._batch: list[Sequence] = []
        self._joining: list[Sequence] = []
        self._started_s = 0.0
        """When the first step of the present batch began."""
        self._version = 0
        self.room_tokens = 0
        """Promised to requests that are under way or here."""
        self.num_promised = 0
        self.promised_context_tokens = 0
        """Prompts of those under way."""
        self.steps_total = 0

    @property
    def running(self) -> int:
        return len(self._batch) + len(self._joining)

    @property
    def context_tokens(self) -> int:
        return sum(one.context_tokens for one in (*self._batch, *self._joining))

    def has_room(self, tokens: int) -> bool:
        return self.room_tokens + tokens <= self.hardware.decode_capacity_tokens

    def join(
        self, context_tokens: int, tokens: int, since_s: float, on_done: Callable[[float], None]
    ) -> None:
        """`tokens` more are wanted after token 0, given at `since_s`; `on_done` gets the TBT."""
        self._joining.append(Sequence(tokens, context_tokens, since_s, on_done))
        if not self._batch:
            self._take_in()
        elif len(self._joining) == 1:
            steps = self._steps_by(self._loop.now_s)
            self._plan(min(steps, min(one.tokens_left for one in self._batch)))

    def _step_coefficients(self) -> tuple[float, float]:
        """(time of the first step, what each later one takes more)."""
        hardware, batch = self.hardware, len(self._batch)
        context = sum(one.context_tokens for one in self._batch)
        first_s = hardware.decode_step_s + hardware.decode_sequence_s * batch
        per_token_s = hardware.decode_context_s / K
        return first_s + per_token_s * context, per_token_s * batch

    def _time_of(self, steps: int) -> float:
        first_s, growth_s = self._step_coefficients()
        return steps * first_s + growth_s * steps * (steps - 1) / 2

    def _steps_by(self, time_s: float) -> int:
        """Whole steps until the first step boundary at or after this time."""
        first_s, growth_s = self._step_coefficients()
        passed_s = max(0.0, time_s - self._started_s)
        if growth_s <= 0:
            return max(1, math.ceil(passed_s / first_s))
        half = growth_s / 2
        linear = first_s - half
        root = math.sqrt(linear * linear + 4 * half * passed_s)
        return max(1, math.ceil((root - linear) / (2 * half) - 1e-9))

    def _plan(self, steps: int) -> None:
        self._version += 1
        version = self._version
        self._loop.at(self._started_s + self._time_of(steps), lambda: self._advance(steps, version))

    def _advance(self, steps: int, version: int) -> None:
        if version != self._version:
            return  # the batch changed since
        self.steps_total += steps
        step_s = self._time_of(steps) / steps
        done: list[Sequence] = []
        for one in self._batch:
            one.tokens_left -= steps
            one.context_tokens += steps
            if one.intervals:
                one.intervals.append((step_s, steps))
            else:  # its first interval began at token 0
                one.intervals.append((self._started_s - one.token_s + step_s, 1))
                one.intervals.append((step_s, steps - 1))
            if one.tokens_left <= 0:
                done.append(one)
        self._batch = [one for one in self._batch if one.tokens_left > 0]
        self._take_in()
        for one in done:
            one.on_done(tbt_of(one.intervals))

    def _take_in(self) -> None:
        self._batch.extend(self._joining)
        self._joining = []
        self._started_s = self._loop.now_s
        if self._batch:
            self._plan(min(one.tokens_left for one in self._batch))


def tbt_of(intervals: list[tuple[float, int]]) -> float:
    """TBT as shared.scheduling.slo defines it, of intervals that are counted by length."""
    total = sum(count for _, count in intervals)
    if not total:
        return 0.0
    wanted = max(1, math.ceil(total * LONGEST_SHARE))
    left, seconds = wanted, 0.0
    for length_s, count in sorted(intervals, reverse=True):
        taken = min(left, count)
        seconds += taken * length_s
        left -= taken
        if not left:
            break
    return seconds / wanted
