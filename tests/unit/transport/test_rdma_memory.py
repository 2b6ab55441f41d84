"""Scratch memory of rdma: what UCX refuses costs one read, not the transport."""

from concurrent.futures import Future
from typing import Any, cast

import pytest

from shared.transport.base import PeerLost
from shared.transport.rdma_memory import ScratchMemory
from shared.transport.ucx_context import UcxError
from shared.transport.ucx_thread import UcxThread


class Refusing:
    """A UCX thread whose registrations fail so many times."""

    def __init__(self, num_failures: int) -> None:
        self._left = num_failures

    def register(self, address: int, size: int) -> Any:
        if self._left:
            self._left -= 1
            raise UcxError("memlock limit")
        return (address, size)

    def run(self, call: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call())
        except UcxError as error:
            done.set_exception(error)
        return done


async def test_memory_that_cannot_be_registered_is_a_peer_that_cannot_be_read_this_way() -> None:
    memory = ScratchMemory(cast(UcxThread, Refusing(1)))
    with pytest.raises(PeerLost, match="memlock limit"):
        async with memory.taken():
            raise AssertionError("nothing was registered")
    async with memory.taken() as scratch:
        assert scratch is not None
    memory.close()
