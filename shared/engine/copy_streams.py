"""Copies between host and device that run beside computing. Knows nothing of KV.

Three parties: the host thread, the device's computing, and a stream of copies in each direction.
`InlineStreams` copies at once, on a CPU; whoever uses streams must be right with either.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from shared.engine.device import ComputeDevice


class Ticket(Protocol):
    """One copy that was ordered."""

    def is_done(self) -> bool: ...

    def wait_host(self) -> None:
        """Until it is done."""

    def wait_compute(self) -> None:
        """What is computed from now on comes after it; the host goes on."""


class CopyStreams(Protocol):
    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that copies may read and write while the host does other things."""

    def to_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        """(target, source) each, after what was computed so far; sources stay as they are
        until it is done."""

    def to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        """(target, source) each, after what was computed so far."""


class _Done:
    def is_done(self) -> bool:
        return True

    def wait_host(self) -> None:
        pass

    def wait_compute(self) -> None:
        pass


class InlineStreams:
    """The host's memory is the device's."""

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def to_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        return self._copy(pairs)

    def to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        return self._copy(pairs)

    def _copy(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        for target, source in pairs:
            target.copy_(source)
        return _Done()


_cuda: Any = torch.cuda  # its streams and events have no types


class _CudaTicket:
    def __init__(self, event: Any, device: torch.device) -> None:
        self._event = event
        self._device = device

    def is_done(self) -> bool:
        return bool(self._event.query())

    def wait_host(self) -> None:
        self._event.synchronize()

    def wait_compute(self) -> None:
        _cuda.current_stream(self._device).wait_event(self._event)


class CudaStreams:
    """A stream of copies to the device and one to the host, beside the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._to_device = _cuda.Stream(device)
        self._to_host = _cuda.Stream(device)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with _cuda.device(self._device):
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def to_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        return self._copy(self._to_device, pairs)

    def to_host(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        return self._copy(self._to_host, pairs)

    def _copy(self, stream: Any, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Ticket:
        stream.wait_stream(_cuda.current_stream(self._device))
        with _cuda.stream(stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
                # Its memory must not be given to others before the copy has read it.
                if source.is_cuda:
                    source.record_stream(stream)
            event = _cuda.Event()
            event.record(stream)
        return _CudaTicket(event, self._device)


def copy_streams(device: ComputeDevice) -> CopyStreams:
    return CudaStreams(device.torch_device) if device.is_cuda else InlineStreams()
