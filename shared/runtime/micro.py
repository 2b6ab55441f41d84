"""A NATS micro service: typed endpoints that run concurrently and answer errors clearly."""

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import nats.micro
import nats.micro.service
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER
from nats.micro.service import EndpointConfig, EndpointStats

from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.envelope import Message, MessageError, decode, encode, is_json
from shared.messages.error_numbers import ERROR_NUMBERS
from shared.runtime.bus import Bus, ErrorBody
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.tasks import Tasks
from shared.telemetry import about, metrics
from shared.telemetry.metric import Reading

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, R]):
    """One operation: a subject, the schemas of question and answer, a handler.

    Handlers run each in a task of its own, at most `max_running` at once; one more is refused.
    """

    name: str
    subject: str
    request_type: type[Q]
    reply_type: type[R]
    handler: Callable[[Q], Awaitable[R]]
    description: str
    queue: str = subjects.QUEUE_GROUP
    max_running: int = 256


AnyEndpoint = Endpoint[Any, Any]


@dataclass(slots=True)
class _Work:
    """What the handler of one endpoint did, until its answers were ready."""

    num_ended: int = 0
    num_errors: int = 0
    seconds: float = 0.0
    last_error: str | None = None

    def ended(self, since_s: float) -> None:
        self.num_ended += 1
        self.seconds += monotonic_s() - since_s

    def failed(self, error: ServiceError) -> None:
        self.num_errors += 1
        self.last_error = f"{error.code}:{error.message}"


class MicroService:
    """The micro service of one process; `nats micro ls|info|stats` show it."""

    def __init__(self, bus: Bus, tasks: Tasks, log: logging.Logger) -> None:
        self._bus = bus
        self._tasks = tasks
        self._log = log
        self._service: Any = None
        self._work: dict[tuple[str, str], _Work] = {}

    async def start(
        self,
        *,
        name: str,
        version: str,
        description: str,
        metadata: dict[str, str],
        endpoints: Sequence[Endpoint[Any, Any]],
    ) -> None:
        self._service = await nats.micro.add_service(
            self._bus.client,
            name=name,
            version=version,
            description=description,
            metadata=metadata,
            stats_handler=self._correct,
        )
        for endpoint in endpoints:
            work = self._work[endpoint.name, endpoint.subject] = _Work()
            told = {
                "description": endpoint.description,
                "request": endpoint.request_type.__name__,
                "reply": endpoint.reply_type.__name__,
                "schema": json.dumps(sorted(endpoint.request_type.model_fields)),
            }
            runner = _Runner(endpoint, work, self._bus, self._tasks, self._log)
            await self._add(endpoint, runner, told)

    async def _add(
        self, endpoint: AnyEndpoint, runner: "_Runner[Any, Any]", metadata: dict[str, str]
    ) -> None:
        config = EndpointConfig(
            name=endpoint.name,
            subject=endpoint.subject,
            queue_group=endpoint.queue,
            handler=None,  # type: ignore[arg-type]  # requests do not come by nats-py
            metadata=metadata,
        )
        registered = _Registered(self._service, config, self._bus, runner)
        await registered._start()
        self._service._endpoints.append(registered)

    def _correct(self, stats: EndpointStats) -> dict[str, int]:
        """nats-py counts until the handler has taken a request; ours work in tasks after that.

        Called for each endpoint before its statistics are sent. Returns what ADR-32 calls data.
        """
        work = self._work.get((stats.name, stats.subject))
        if work is None:
            return {}
        stats.num_errors = work.num_errors
        stats.last_error = work.last_error
        stats.processing_time = int(work.seconds * 1e9)
        stats.average_processing_time = stats.processing_time // max(stats.num_requests, 1)
        return {"running": stats.num_requests - work.num_ended}

    def readings(self, service: str) -> Iterator[Reading]:
        """The same numbers as metrics."""
        for (endpoint, _), work in self._work.items():
            yield metrics.ENDPOINT_REQUESTS.of(work.num_ended, service, endpoint)
            yield metrics.ENDPOINT_ERRORS.of(work.num_errors, service, endpoint)
            yield metrics.ENDPOINT_SECONDS.of(work.seconds, service, endpoint)

    async def stop(self) -> None:
        """No more requests are taken; running handlers go on."""
        if self._service is not None and self._bus.is_connected:
            await self._service.stop()
        self._service = None


class _Registered(nats.micro.service.Endpoint):
    """What nats-py's micro service tells of an endpoint; its requests come straight to us."""

    def __init__(
        self, service: Any, config: EndpointConfig, bus: Bus, runner: "_Runner[Any, Any]"
    ) -> None:
        super().__init__(service, config)
        self._bus = bus
        self._runner = runner

    async def _start(self) -> None:
        self._subscription = await self._bus.client.listen(
            self._subject, self._on_message, queue=self._queue_group
        )

    async def _stop(self) -> None:
        """No more is sent to us; what has been already is still answered. nats-py drops that."""
        listener, self._subscription = self._subscription, None
        if listener is not None:
            await listener.drain()  # type: ignore[no-untyped-call]

    def _on_message(self, _subject: str, reply: str, data: bytes, _headers: bytes) -> None:
        self._num_requests += 1
        self._runner.on_request(reply, data)


class _Runner(Generic[Q, R]):
    """Hands requests of one endpoint to tasks."""

    def __init__(
        self, endpoint: Endpoint[Q, R], work: _Work, bus: Bus, tasks: Tasks, log: logging.Logger
    ) -> None:
        self._endpoint = endpoint
        self._work = work
        self._bus = bus
        self._tasks = tasks
        self._log = log
        self._num_running = 0

    def on_request(self, reply: str, data: bytes) -> None:
        """A question came; nobody waits for an answer when `reply` is empty."""
        if self._num_running >= self._endpoint.max_running:
            self._work.ended(monotonic_s())
            refusal = self._refuse(reply, data, self._too_many())
            self._tasks.start_contained(refusal, name=self._endpoint.name)
            return
        self._num_running += 1
        self._tasks.start_contained(self._run(reply, data), name=self._endpoint.name)

    def _too_many(self) -> ServiceError:
        return ServiceError(
            ErrorCode.OVERLOADED,
            f"{self._endpoint.name}: {self._num_running} requests run already",
            is_retryable=True,
            retry_after_s=0.1,
        )

    async def _run(self, reply: str, data: bytes) -> None:
        start_s = monotonic_s()
        try:
            question = decode(data, self._endpoint.request_type)
            _work_for_request_of(question)
            answer = await self._endpoint.handler(question)
            self._log.debug("%s answered", self._endpoint.name)
            if reply:
                await self._bus.client.publish(reply, encode(answer, as_json=_wants_json(data)))
        except MessageError as error:
            bad = ServiceError(ErrorCode.BAD_REQUEST, str(error), field=error.field)
            await self._refuse(reply, data, bad)
        except ServiceError as error:
            await self._refuse(reply, data, error)
        except Exception:  # the handler boundary: logged whole, told in one sentence
            self._log.exception("%s failed", self._endpoint.name)
            failed = ServiceError(ErrorCode.INTERNAL, f"{self._endpoint.name} failed; see log")
            await self._refuse(reply, data, failed)
        finally:
            self._num_running -= 1
            self._work.ended(start_s)

    async def _refuse(self, reply: str, data: bytes, error: ServiceError) -> None:
        self._work.failed(error)
        self._log.debug("%s refused: %s", self._endpoint.name, error.message)
        if not reply:
            return
        body = encode(ErrorBody(error=error.info), as_json=_wants_json(data))
        told = {
            ERROR_HEADER: " ".join(error.message.split()),
            ERROR_CODE_HEADER: str(ERROR_NUMBERS[error.code]),
        }
        await self._bus.client.publish(reply, body, headers=told)


def _work_for_request_of(question: Message) -> None:
    """Logs and spans of this task are those of the request that the question names, if any."""
    named = getattr(question, "ref", question)
    request_id = getattr(named, "request_id", "")
    traceparent = getattr(question, "traceparent", "")
    if request_id or traceparent:
        about.work_for(request_id, traceparent)


def _wants_json(data: bytes) -> bool:
    return not data or is_json(data)
