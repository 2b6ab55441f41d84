"""Copy streams that do nothing until somebody waits: a wait that is missing shows as wrong numbers.

Copies of one direction are done in order, as on a stream. What a source holds is read late.
"""

from collections.abc import Sequence

import torch

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


class DeferredTicket:
    def __init__(self, stream: "_Stream", number: int) -> None:
        self._stream = stream
        self._number = number

    def is_done(self) -> bool:
        return self._stream.num_done > self._number

    def wait_host(self) -> None:
        self._stream.run_until(self._number)

    def wait_compute(self) -> None:
        self._stream.run_until(self._number)


class _Stream:
    def __init__(self) -> None:
        self.ordered: list[Pairs] = []
        self.num_done = 0

    def order(self, pairs: Pairs) -> DeferredTicket:
        self.ordered.append(list(pairs))
        return DeferredTicket(self, len(self.ordered) - 1)

    def run_until(self, number: int) -> None:
        while self.num_done <= number:
            for target, source in self.ordered[self.num_done]:
                target.copy_(source)
            self.num_done += 1


class DeferredStreams:
    def __init__(self) -> None:
        self.loads = _Stream()
        self.stores = _Stream()

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(tuple(shape), float("nan"), dtype=dtype)

    def to_device(self, pairs: Pairs) -> DeferredTicket:
        return self.loads.order(pairs)

    def to_host(self, pairs: Pairs) -> DeferredTicket:
        return self.stores.order(pairs)
