"""The attempts an instance works on: one task each, stopped for a reason, ended exactly once."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from shared.messages.common import ErrorCode, ErrorInfo, RequestRef
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.telemetry.tracing import Value
from shared.worker.peer_watch import Peer, PeerWatch

log = logging.getLogger("moonpool.worker")
REMEMBERED = 4096
"""Ended attempts that are remembered, so that a late message of one starts nothing."""


class Attempt:
    """One attempt at a request as this instance sees it."""

    def __init__(self, ref: RequestRef) -> None:
        self.ref = ref
        self.handle = ref.handle
        self.is_stopped = False
        """Read by the compute thread between two layers."""
        self.failure: ServiceError | None = None
        """Told to the gateway when the attempt ends; None: it knows or does not care."""
        self.deadline_s = float("inf")
        self.gone = asyncio.Event()
        self._is_working = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Peer] = []

    @property
    def remaining_s(self) -> float:
        return max(self.deadline_s - monotonic_s(), 0.0)

    @property
    def remaining_ms(self) -> int:
        return max(int(self.remaining_s * 1000), 1)

    @property
    def told(self) -> dict[str, Value]:
        """What a trace says of it."""
        return {"attempt": self.ref.attempt}

    @property
    def gateway(self) -> Peer:
        return Peer("gateway", self.ref.gateway, self.ref.gateway_incarnation)

    def stop(self, failure: ServiceError | None) -> None:
        """End it soon; the first reason stays, and one that is ending already just ends."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self.failure = failure
        if self._is_working and self._task is not None:
            self._task.cancel()

    async def attend(
        self,
        work: Callable[[], Awaitable[None]],
        clean_up: Callable[[], Awaitable[None]],
        tell: Callable[[ErrorInfo], Awaitable[None]],
    ) -> None:
        """Do `work`, then always `clean_up`, then tell the gateway when it failed.

        `stop` cancels the work alone: cleaning up is never cut off by it.
        """
        try:
            if not self.is_stopped:
                self._is_working = True
                await work()
        except ServiceError as error:
            self._failed(error)
        except Exception as error:  # the boundary of one request: logged whole, told in a sentence
            log.exception("attempt %s failed", self.handle)
            self._failed(
                ServiceError(
                    ErrorCode.INTERNAL, f"{type(error).__name__} in the worker", is_retryable=True
                )
            )
        finally:
            self._is_working = False
            await clean_up()
            if self.failure is not None:
                await tell(self.failure.info)

    def _failed(self, error: ServiceError) -> None:
        """Why it was stopped says more than what broke because of that."""
        if not self.is_stopped:
            self.failure = error


A = TypeVar("A", bound=Attempt)


class Attempts(Generic[A]):
    """Owns the running attempts by handle, their deadlines and what they watch."""

    def __init__(self, tasks: Tasks, watch: PeerWatch) -> None:
        self._tasks = tasks
        self._watch = watch
        self._running: dict[str, A] = {}
        self._ended: OrderedDict[str, bool] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._running)

    def get(self, handle: str) -> A | None:
        return self._running.get(handle)

    def all(self) -> list[A]:
        return list(self._running.values())

    def has_finished(self, handle: str) -> bool:
        """It ended here by itself: a repeated message of it needs no work."""
        return self._ended.get(handle) is False

    def has_ended(self, handle: str) -> bool:
        return handle in self._ended

    def forget(self, handle: str) -> None:
        """It is reserved anew: what ended under this name does not count any more."""
        if handle not in self._running:
            self._ended.pop(handle, None)

    async def wait_gone(self, handle: str, timeout_s: float) -> bool:
        """Until an attempt that was stopped has cleaned up; False when it takes longer."""
        attempt = self._running.get(handle)
        if attempt is None or not attempt.is_stopped:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await attempt.gone.wait()
        except TimeoutError:
            return False
        return True

    def begin(self, attempt: A, work: Coroutine[Any, Any, None], peers: Iterable[Peer]) -> None:
        """Run `work` as the attempt's task; it must clean up when it is cancelled."""
        self._running[attempt.handle] = attempt
        self._ended.pop(attempt.handle, None)
        self._idle.clear()
        for peer in peers:
            self.watch(attempt, peer)
        task = self._tasks.start_contained(work, name=f"attempt {attempt.handle}")
        attempt._task = task
        task.add_done_callback(lambda _: self._end(attempt))

    def set_deadline(self, attempt: A, remaining_ms: int) -> None:
        """The receiver's own clock decides from here on."""
        attempt.deadline_s = monotonic_s() + remaining_ms / 1000
        failure = ServiceError(
            ErrorCode.DEADLINE, f"not done within the {remaining_ms} ms that the request had left"
        )
        loop = asyncio.get_running_loop()
        if attempt._timer is not None:
            attempt._timer.cancel()
        attempt._timer = loop.call_later(remaining_ms / 1000, attempt.stop, failure)

    def watch(self, attempt: A, peer: Peer) -> None:
        attempt._watched.append(peer)
        self._watch.watch(peer, monotonic_s())

    def unwatch(self, attempt: A, peer: Peer) -> None:
        if peer in attempt._watched:
            attempt._watched.remove(peer)
            self._watch.unwatch(peer)

    def peer_gone(self, peer: Peer) -> None:
        """Stop what depends on it. A gone gateway is told nothing; others are named to it."""
        for attempt in self.all():
            if peer not in attempt._watched:
                continue
            if peer == attempt.gateway:
                attempt.stop(None)
            else:
                attempt.stop(
                    ServiceError(
                        ErrorCode.PEER_LOST, f"{peer.service} {peer.id} is gone", is_retryable=True
                    )
                )

    def cancel(self, handle: str) -> None:
        """The gateway or the conductor is done with it; also when it never came here."""
        attempt = self._running.get(handle)
        if attempt is not None:
            attempt.stop(None)
        self._remember(handle, was_cancelled=True)

    def cancel_of(self, gateway: Peer, handles: Iterable[str]) -> None:
        """Those of these attempts that run here for this gateway; others are not touched."""
        for handle in handles:
            attempt = self._running.get(handle)
            if attempt is not None and attempt.gateway == gateway:
                self.cancel(handle)

    def stop_all(self, failure: ServiceError) -> None:
        for attempt in self.all():
            attempt.stop(failure)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def _end(self, attempt: A) -> None:
        if attempt._timer is not None:
            attempt._timer.cancel()
        for peer in list(attempt._watched):
            self.unwatch(attempt, peer)
        if self._running.get(attempt.handle) is attempt:
            del self._running[attempt.handle]
        self._remember(
            attempt.handle,
            was_cancelled=attempt.is_stopped or self._ended.get(attempt.handle, False),
        )
        attempt.gone.set()
        if not self._running:
            self._idle.set()

    def _remember(self, handle: str, *, was_cancelled: bool) -> None:
        self._ended[handle] = was_cancelled
        self._ended.move_to_end(handle)
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
