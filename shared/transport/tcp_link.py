"""All streams to one peer: calls share them in turn; one end of a stream is the end of the peer.

Lives on the loop. Knows nothing of other peers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from shared.transport.base import Peer, PeerLost
from shared.transport.settling import settled
from shared.transport.tcp_pipe import Progress
from shared.transport.tcp_stream import Stream, Work

log = logging.getLogger("moonpool.transport.tcp")
OpenStream = Callable[["PeerLink"], Stream]


class PeerLink:
    """Streams are opened when there is work for them, and stay."""

    def __init__(
        self,
        peer: Peer,
        max_streams: int,
        open_stream: OpenStream,
        on_lost: Callable[["PeerLink", str], None],
    ) -> None:
        self.peer = peer
        self.progress = Progress()
        self._max_streams = max_streams
        self._open_stream = open_stream
        self._on_lost = on_lost
        self._streams: set[Stream] = set()
        self._free: list[Stream] = []
        self._calls: deque[deque[Work]] = deque()
        """What each call has not begun yet, in turn."""
        self._num_users = 0
        self.was_connected = False
        self._opened: asyncio.Future[None] | None = None
        self._end_reason = ""

    @property
    def is_busy(self) -> bool:
        return self._num_users > 0

    async def opened(self) -> None:
        """Until a stream is there; PeerLost when it cannot be."""
        self._check()
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._streams.add(self._open_stream(self))
        self._num_users += 1
        try:
            await asyncio.shield(self._opened)
        finally:
            self._num_users -= 1
        self._check()

    async def run(self, works: Sequence[Work], timeout_s: float) -> None:
        """Do all works, or leave off at the first that is not whole. Raises PeerLost, TimeoutError.

        Whatever happens, no thread touches the slots of these works when it is over.
        """
        self._check()
        waiting = deque(works)
        for work in works:
            work.waiting = waiting
        self._calls.append(waiting)
        self._num_users += 1
        ends = [work.ended for work in works]
        try:
            self._pump()
            async with asyncio.timeout(timeout_s):
                await asyncio.wait(ends)
        finally:
            self._num_users -= 1
            _never_begun(waiting)
            for work in works:
                if not work.ended.done() and work.stream is not None:
                    work.stream.cut()
            await settled(ends)
        failed = [work.error for work in works if work.error is not None]
        if failed or any(work.stream is None for work in works):
            self._check()
        if failed:
            raise PeerLost(f"node {self.peer.node}: {failed[0]}")

    def on_free(self, stream: Stream, done: Work | None) -> None:
        """It has greeted, or has done its work."""
        if self._end_reason or stream not in self._streams or stream.is_cut:
            return  # it may be done with its work just as it is cut
        self.was_connected = True
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        if done is not None and done.done < len(done.slices):
            _never_begun(done.waiting)  # what comes after it is not asked for any more
        self._free.append(stream)
        self._pump()

    def on_stream_ended(self, stream: Stream, reason: str) -> None:
        self._streams.discard(stream)
        if stream in self._free:
            self._free.remove(stream)
        if self._end_reason:
            return
        if stream.is_cut:
            if not self._streams and self._opened is not None and self._opened.done():
                self._opened = None  # the next call opens another
            self._pump()
        elif self._streams and not stream.has_greeted:
            log.warning("node %s takes %d streams: %s", self.peer.node, len(self._streams), reason)
            self._max_streams = len(self._streams)
        else:
            self._on_lost(self, reason)

    def end(self, reason: str) -> None:
        """Cut everything; what runs raises PeerLost once it is settled."""
        if self._end_reason:
            return
        self._end_reason = reason
        for waiting in self._calls:
            _never_begun(waiting)
        for stream in self._streams:
            stream.cut()
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def _check(self) -> None:
        if self._end_reason:
            raise PeerLost(f"node {self.peer.node}: {self._end_reason}")

    def _pump(self) -> None:
        """Give free streams work, one piece of each call in turn; open more while some waits."""
        while self._free and self._calls:
            waiting = self._calls.popleft()
            if not waiting:
                continue
            self._free.pop().start(waiting.popleft())
            if waiting:
                self._calls.append(waiting)
        num_waiting = sum(map(len, self._calls))
        num_opening = sum(not stream.has_greeted for stream in self._streams)
        while num_waiting > num_opening and len(self._streams) < self._max_streams:
            self._streams.add(self._open_stream(self))
            num_opening += 1


def _never_begun(waiting: deque[Work]) -> None:
    while waiting:
        work = waiting.popleft()
        if not work.ended.done():
            work.ended.set_result(None)
