"""PURE: who is in the device cache of a decode instance, with how much room, and who is put out.

Requests stand in one line, in the order in which their KV came. The device cache holds the first of
the line; the others are outside, their KV saved. Each inside has room for what it has and a step
more. When one needs a further step and it is not free, the last inside is put out, until it is (or
until that is itself). The first of those outside comes in when it fits and each inside may still
take its next step.

So: the first of the line is never put out and needs nobody's leave, and everybody becomes the first
when those before him have ended: nobody starves. Who comes in computes at least one step of tokens
before it can be put out, less those that others compute while it moves in, and whenever one is put
out another has grown: no two put one another out for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass

STEP_TOKENS = 64
"""Room is given in multiples of it, as far as the request's own limit allows."""
GROWTH_DIVISOR = 8
"""A step is so large a part of the room at least: growing may copy what is there."""


@dataclass(slots=True)
class _Entry:
    handle: str
    num_tokens: int
    """It can go on with room for so many."""
    limit_tokens: int
    room_tokens: int = 0
    """0: outside."""
    is_settled: bool = False
    """All its KV is inside, and nothing else is done with it: it may be put out."""


class DeviceRooms:
    """Owns the line and the room of each. Moves no KV."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._line: dict[str, _Entry] = {}
        self._used_tokens = 0

    def __contains__(self, handle: str) -> bool:
        return handle in self._line

    @property
    def used_tokens(self) -> int:
        return self._used_tokens

    @property
    def num_outside(self) -> int:
        return sum(not entry.room_tokens for entry in self._line.values())

    def room(self, handle: str) -> int:
        """0: it is outside."""
        entry = self._line.get(handle)
        return 0 if entry is None else entry.room_tokens

    def in_line(self, handles: Iterable[str]) -> list[str]:
        """Those of them that are known, the oldest first."""
        wanted = set(handles)
        return [handle for handle in self._line if handle in wanted]

    def arrive(self, handle: str, num_tokens: int, limit_tokens: int) -> None:
        """To the end of the line, outside."""
        if handle in self._line:
            raise ValueError(f"{handle} is in line already")
        if not 1 <= num_tokens <= limit_tokens <= self._capacity_tokens:
            raise ValueError(
                f"{handle}: {num_tokens} tokens now, {limit_tokens} at most, of "
                f"{self._capacity_tokens}"
            )
        self._line[handle] = _Entry(handle, num_tokens, limit_tokens)

    def let_in(self) -> list[str]:
        """Those that come in now, in order; they have their room and are not settled yet."""
        came: list[str] = []
        for entry in self._line.values():
            if entry.room_tokens:
                continue
            room = min(entry.num_tokens + _step(entry.num_tokens), entry.limit_tokens)
            if self._used_tokens + room + self._next_steps() > self._capacity_tokens:
                break
            entry.room_tokens = room
            self._used_tokens += room
            came.append(entry.handle)
        return came

    def settle(self, handle: str) -> None:
        entry = self._line.get(handle)
        if entry is not None and entry.room_tokens:
            entry.is_settled = True

    def unsettle(self, handle: str) -> None:
        """It is being moved, or about to end: nobody puts it out."""
        entry = self._line.get(handle)
        if entry is not None:
            entry.is_settled = False

    def grow(self, handle: str, num_tokens: int) -> bool:
        """Room for `num_tokens`; False when somebody has to be put out first."""
        entry = self._line[handle]
        if num_tokens <= entry.room_tokens:
            return True
        room = min(
            max(entry.room_tokens + _step(entry.room_tokens), num_tokens), entry.limit_tokens
        )
        if num_tokens > room:
            raise ValueError(f"{handle}: {num_tokens} tokens, its limit is {entry.limit_tokens}")
        more = room - entry.room_tokens
        if self._used_tokens + more > self._capacity_tokens:
            return False
        entry.room_tokens = room
        self._used_tokens += more
        return True

    def last_inside(self) -> str | None:
        """Whom to put out. None: it is on the move, and when that is over there may be room."""
        inside = [entry for entry in self._line.values() if entry.room_tokens]
        return inside[-1].handle if inside and inside[-1].is_settled else None

    def put_out(self, handle: str, num_tokens: int) -> None:
        """Its room is free; it keeps its place in line and comes back with `num_tokens`."""
        entry = self._line[handle]
        self._used_tokens -= entry.room_tokens
        entry.room_tokens = 0
        entry.num_tokens = num_tokens
        entry.is_settled = False

    def end(self, handle: str) -> None:
        entry = self._line.pop(handle, None)
        if entry is not None:
            self._used_tokens -= entry.room_tokens

    def _next_steps(self) -> int:
        return sum(
            min(_step(entry.room_tokens), entry.limit_tokens - entry.room_tokens)
            for entry in self._line.values()
            if entry.room_tokens
        )


def _step(num_tokens: int) -> int:
    """More room: to the next multiple of STEP_TOKENS that is a whole step away."""
    step = max(STEP_TOKENS, num_tokens // GROWTH_DIVISOR)
    return -(-(num_tokens + step) // STEP_TOKENS) * STEP_TOKENS - num_tokens
