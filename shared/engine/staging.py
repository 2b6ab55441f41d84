"""A few host buffers in turn, between the pool and the device. Knows nothing of what they hold.

The pool's memory is pageable and shared with other processes, so a copy engine does not touch it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from shared.engine.copy_streams import CopyStreams, Ticket


class StagingRing:
    """Owns the buffers; a buffer is given out again when the copy from or to it is done."""

    def __init__(
        self, streams: CopyStreams, depth: int, shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        self._buffers = [streams.host_buffer(shape, dtype) for _ in range(depth)]
        self._tickets: list[Ticket | None] = [None] * depth
        self._next = 0

    @property
    def depth(self) -> int:
        return len(self._buffers)

    def take(self) -> torch.Tensor:
        """The next buffer; waits for the copy that used it last."""
        ticket = self._tickets[self._next]
        if ticket is not None:
            ticket.wait_host()
            self._tickets[self._next] = None
        return self._buffers[self._next]

    def used_by(self, ticket: Ticket) -> None:
        """The buffer that was taken last is in use until then."""
        self._tickets[self._next] = ticket
        self._next = (self._next + 1) % len(self._buffers)


@dataclass(frozen=True, slots=True)
class _Store:
    layer: int
    ticket: Ticket
    to_pool: Callable[[], None]


class LayerStores:
    """Layers on their way to the pool, in order. A layer is reported when it has arrived."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._pending: deque[_Store] = deque()

    def make_room(self) -> list[int]:
        """Layers that had to arrive first, so that a staging buffer is free."""
        arrived = []
        while len(self._pending) >= self._depth:
            arrived.append(self._finish())
        return arrived

    def add(self, layer: int, ticket: Ticket, to_pool: Callable[[], None]) -> None:
        """`to_pool` runs on the host once the copy is done."""
        self._pending.append(_Store(layer, ticket, to_pool))

    def arrived(self) -> list[int]:
        """Those that are done, without waiting."""
        layers = []
        while self._pending and self._pending[0].ticket.is_done():
            layers.append(self._finish())
        return layers

    def drain(self) -> list[int]:
        """All of them."""
        layers = []
        while self._pending:
            layers.append(self._finish())
        return layers

    def drop(self) -> None:
        """None of them goes to the pool any more; no copy is under way afterwards."""
        while self._pending:
            self._pending.popleft().ticket.wait_host()

    def _finish(self) -> int:
        store = self._pending.popleft()
        store.ticket.wait_host()
        store.to_pool()
        return store.layer
