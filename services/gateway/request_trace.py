"""Says on the bus what happens to a request that asked for it; nothing for the others."""

from typing import Any

from services.gateway.job import Job
from shared.messages import subjects
from shared.messages.trace import TraceEvent
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks


class RequestTrace:
    """`name` is the subject's last token: what the client called the request."""

    def __init__(self, bus: Bus, tasks: Tasks, *, name: str, job: Job, is_on: bool) -> None:
        self._bus = bus
        self._tasks = tasks
        self._subject = subjects.trace(name)
        self._job = job
        self.is_on = is_on

    def say(self, event: str, **details: Any) -> None:
        if not self.is_on:
            return
        message = TraceEvent(
            request_id=self._job.request_id,
            event=event,
            since_start_s=round(monotonic_s() - self._job.received_s, 6),
            traceparent=self._job.traceparent,
            details=details,
        )
        self._tasks.start_contained(self._publish(message), name="trace")

    async def _publish(self, message: TraceEvent) -> None:
        try:
            await self._bus.publish(self._subject, message, as_json=True)
        except ServiceError:
            self.is_on = False  # cut off: a trace is worth no waiting
