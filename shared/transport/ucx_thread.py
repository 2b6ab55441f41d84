"""The thread that makes all calls to UCX: sleeps on event fds, never spins, blocks no loop.

Two workers: peers reach the one whose address is published, own transfers go over the other. So an
endpoint that is closed here never takes a connection along that a peer made, and the other way
round; and what peers may still write is ended by replacing the first.
"""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from shared.transport.base import RdmaAddress
from shared.transport.ucx_context import Region, UcxContext
from shared.transport.ucx_endpoint import UcxEndpoint
from shared.transport.ucx_library import UcxLibrary
from shared.transport.ucx_worker import UcxWorker

log = logging.getLogger("moonpool.transport.ucx")
T = TypeVar("T")
PROGRESS_ROUNDS = 64
"""Between two looks at what other threads want."""
CLOSE_S = 5.0
CLOSE_WAIT_S = 0.1


class UcxThread:
    """`run` and `post` hand work to the thread; everything of UCX happens there."""

    def __init__(
        self, library: UcxLibrary, options: Mapping[str, str], now_s: Callable[[], float]
    ) -> None:
        self._library = library
        self._options = options
        self._now_s = now_s
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closing = False
        self._open_endpoints: set[UcxEndpoint] = set()
        self._working: set[UcxEndpoint] = set()
        self._opened: Future[None] = Future()
        self.num_wakeups = 0
        self.context: UcxContext
        self._target: UcxWorker
        self._initiator: UcxWorker
        self._poll = select.epoll()
        self._thread = threading.Thread(target=self._main, name="ucx", daemon=True)

    def open(self) -> None:
        """Start it; UcxError when UCX cannot be set up with these options."""
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            self._thread.join()
            raise

    def close(self) -> None:
        """Ends all endpoints and registrations. The memory may go after it."""
        if self._thread.is_alive():
            self._is_closing = True
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join()

    def post(self, call: Callable[[], None]) -> None:
        """Have it called on the thread soon; it must not raise. Not after `close`."""
        self._calls.append(call)
        os.eventfd_write(self._wake_fd, 1)

    def run(self, call: Callable[[], T]) -> Future[T]:
        """As `post`, with its result."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001  (raised where the result is awaited)
                future.set_exception(error)

        self.post(work)
        return future

    def endpoint(self, address: RdmaAddress, on_lost: Callable[[str], None]) -> UcxEndpoint:
        """Made on any thread; connects when the first job is started on it."""
        return UcxEndpoint(lambda: self._initiator, address, on_lost, self._work_at, self._now_s)

    # --- on the thread -----------------------------------------------------------------------

    @property
    def address(self) -> bytes:
        """Where peers reach us."""
        return self._target.address

    def register(self, address: int, num_bytes: int) -> Region:
        return self.context.register(address, num_bytes)

    def replace_target(self) -> None:
        """Nothing that peers have written by now lands after it; they must ask for the address."""
        self._poll.unregister(self._target.event_fd)
        self._target.destroy()
        self._target = self._watched(UcxWorker(self.context))

    def _work_at(self, endpoint: UcxEndpoint) -> None:
        self._open_endpoints.add(endpoint)
        self._working.add(endpoint)

    def _main(self) -> None:
        try:
            self.context = UcxContext.open(self._library, self._options)
            self._target = self._watched(UcxWorker(self.context))
            self._initiator = self._watched(UcxWorker(self.context))
            self._poll.register(self._wake_fd, select.EPOLLIN)
        except BaseException as error:  # noqa: BLE001  (raised in `open`)
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        try:
            while True:
                self._work()
                if self._is_closing:  # only now: the work may have taken its wake-up
                    break
                self._poll.poll()
                self.num_wakeups += 1
        finally:
            self._end()

    def _work(self) -> None:
        """Until there is nothing to do and both workers are armed."""
        while True:
            self._make_calls()
            for _ in range(PROGRESS_ROUNDS):
                if not self._progress():
                    break
            else:
                continue
            if self._initiator.arm() and self._target.arm():
                return

    def _progress(self) -> bool:
        has_worked = bool(self._initiator.progress()) | bool(self._target.progress())
        for endpoint in list(self._working):
            has_worked |= endpoint.advance()
            if endpoint.is_idle:
                self._working.discard(endpoint)
                if endpoint.is_lost:
                    self._open_endpoints.discard(endpoint)
        return has_worked

    def _make_calls(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._calls:
            self._calls.popleft()()

    def _watched(self, worker: UcxWorker) -> UcxWorker:
        self._poll.register(worker.event_fd, select.EPOLLIN)
        return worker

    def _end(self) -> None:
        """Close what is open first: a worker with requests of its own must not be destroyed."""
        self._make_calls()
        for endpoint in list(self._open_endpoints):
            endpoint.close("this node ends")
        deadline_s = self._now_s() + CLOSE_S
        while self._working and self._now_s() < deadline_s:
            if not self._progress() and self._initiator.arm() and self._target.arm():
                self._poll.poll(CLOSE_WAIT_S)
        if self._working:
            log.critical("UCX does not end %d connections; it is left as it is", len(self._working))
            return
        self._initiator.destroy()
        self._target.destroy()
        self.context.close()
        self._poll.close()
        os.close(self._wake_fd)
