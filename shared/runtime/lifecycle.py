"""From main to exit code: settings, loop, bus, signals, start, drain and stop of one service."""

import asyncio
import functools
import gc
import importlib.metadata
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import uvloop

from shared.messages import subjects
from shared.messages.envelope import Message
from shared.messages.reports import PingReply, State
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.health_file import HealthFile
from shared.runtime.metrics_listener import MetricsListener
from shared.runtime.micro import Endpoint, MicroService
from shared.runtime.process_readings import ProcessReadings
from shared.runtime.settings import CommonSettings, load_settings
from shared.runtime.tasks import Tasks
from shared.runtime.unless import unless
from shared.telemetry import logs, otlp
from shared.telemetry.meters import Meters

S = TypeVar("S", bound=CommonSettings)
STOP_TIMEOUT_S = 5.0
HEALTH_INTERVAL_S = 5.0
HEALTH_FIRST_S = 0.5
HEALTH_TIMEOUT_S = 4.0
GC_ALLOCATIONS = 10_000
"""Between two collections of young objects: a request makes some thousands, few in cycles."""


class PingRequest(Message):
    """Who is there?"""


@dataclass
class Context(Generic[S]):
    """What a running service stands on."""

    service: str
    settings: S
    bus: Bus
    tasks: Tasks
    log: logging.Logger
    incarnation: str
    stopping: asyncio.Event
    hurried: asyncio.Event = field(default_factory=asyncio.Event)
    """SIGINT came, now or during a drain: nobody takes over, so nothing is done for a successor."""
    longest_drain_s: float | None = None
    """In place of the setting, for a service whose end nobody waits for."""
    state: State = "starting"
    meters: Meters = field(default_factory=Meters, repr=False)
    """The metrics of the process: add what yours tells."""
    metrics_url: str = ""
    """Where they are served; empty when nowhere."""
    _micro: MicroService | None = field(default=None, repr=False)
    _forget_micro: Callable[[], None] = field(default=lambda: None, repr=False)
    _is_telling_health: bool = field(default=False, repr=False)

    @property
    def id(self) -> str:
        return self.settings.instance_id

    async def serve(
        self, endpoints: Sequence[Endpoint[Any, Any]], *, metadata: dict[str, str] | None = None
    ) -> None:
        """Register the process as a NATS micro service with these endpoints and a ping."""
        ping = Endpoint(
            name="ping",
            subject=subjects.ping(self.service, self.id),
            request_type=PingRequest,
            reply_type=PingReply,
            handler=self._on_ping,
            description="Who this process is and whether it is ready",
        )
        self._micro = MicroService(self.bus, self.tasks, self.log)
        self._forget_micro = self.meters.add(
            self.service, functools.partial(self._micro.readings, self.service)
        )
        place = {"metrics": self.metrics_url} if self.metrics_url else {}
        await self._micro.start(
            name=f"moonpool-{self.service}",
            version=importlib.metadata.version("moonpool"),
            description=f"moonpool {self.service}",
            metadata={
                "id": self.id,
                "incarnation": self.incarnation,
                "role": self.service,
                **place,
                **(metadata or {}),
            },
            endpoints=[*endpoints, ping],
        )
        await self.bus.flush()
        if self.settings.health_file is not None and not self._is_telling_health:
            self._is_telling_health = True
            self.tasks.start_soon(
                self._tell_health(HealthFile(self.settings.health_file)), name="health"
            )

    async def stop_serving(self) -> None:
        """Take no more requests; replies of running handlers still go out."""
        if self._micro is not None:
            self._forget_micro()
            await self._micro.stop()

    async def _tell_health(self, file: HealthFile) -> None:
        """Asked over the bus, as others would: the loop, the connection and the state."""
        while True:
            try:
                reply = await self.bus.request(
                    subjects.ping(self.service, self.id),
                    PingRequest(),
                    PingReply,
                    timeout_s=HEALTH_TIMEOUT_S,
                )
                if reply.state == "ready":
                    await asyncio.to_thread(file.tell, self.service, self.id)
            except (ServiceError, OSError) as error:
                self.log.warning("not healthy: %s", error)
            await asyncio.sleep(HEALTH_INTERVAL_S if file.is_told else HEALTH_FIRST_S)

    async def _on_ping(self, _: PingRequest) -> PingReply:
        return PingReply(
            service=self.service,
            id=self.id,
            incarnation=self.incarnation,
            state=self.state,
            bad_messages_total=self.bus.bad_messages_total,
        )


class Service(Protocol[S]):
    """What `run_service` runs. `stop` may be called after a failed or cancelled start."""

    async def start(self, context: Context[S]) -> None:
        """Build the parts, serve, set context.state to ready when it is."""

    async def drain(self) -> None:
        """Refuse new work and finish what runs; cut off after drain_timeout_s."""

    async def stop(self) -> None:
        """Release everything that outlives the process (files, sockets, leases)."""


def run_service(name: str, settings_type: type[S], build: Callable[[S], Service[S]]) -> NoReturn:
    """The whole main of a service; exits 0 after a drain, 1 after a crash, 2 on bad settings."""
    settings = load_settings(name, settings_type)
    labels = {"service": name, "id": settings.instance_id}
    logs.set_up(settings.log_level, settings.log_format, labels)
    log = logging.getLogger(f"moonpool.{name}")
    end_traces = otlp.start(name, settings.instance_id)
    code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(name, settings, build(settings), log))
    except Exception as error:  # the top: said once, then the supervisor restarts
        expected = _expected(error)
        if expected is not None:
            log.error("%s cannot go on: %s", settings.instance_id, expected)
        else:
            log.exception("%s ends with an error", settings.instance_id)
        code = 1
    end_traces()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a compute thread in the middle of a matmul must not hold up the end.
    os._exit(code)


def _expected(error: Exception) -> ServiceError | None:
    """The ServiceError that ended the service, None when a bug did."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        inner = error.exceptions[0]
        return _expected(inner)
    return None


async def _run(name: str, settings: S, service: Service[S], log: logging.Logger) -> None:
    stopping, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        hurried.set()
        stopping.set()

    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    bus = await unless(
        stopping,
        Bus.connect(settings.nats_url, name=settings.instance_id, access=settings.nats_access()),
    )
    if bus is None:
        return
    try:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, log)
            context = Context(
                service=name,
                settings=settings,
                bus=bus,
                tasks=tasks,
                log=log,
                incarnation=secrets.token_hex(8),
                stopping=stopping,
                hurried=hurried,
            )
            listener = await _start_metrics(context)
            try:
                await _live(context, service)
            finally:
                await _bounded(service.stop(), STOP_TIMEOUT_S, "stop", log)
                if listener is not None:
                    listener.stop()
                left = await tasks.end(STOP_TIMEOUT_S)
                if left:
                    # The group would wait for them for ever; shutdown is bounded.
                    log.error("tasks that do not end: %s", ", ".join(left))
                    os._exit(1)
    finally:
        await _bounded(bus.close(), STOP_TIMEOUT_S, "closing the bus", log)


async def _start_metrics(context: Context[S]) -> MetricsListener | None:
    """Metrics of the process itself, and the listener that serves all when it is wanted."""
    own = ProcessReadings(context.service, context.id, context.bus)
    context.meters.add("common", own.readings)
    context.tasks.start_soon(own.watch_loop(), name="loop lag")
    settings = context.settings
    if settings.metrics_port is None:
        return None
    listener = MetricsListener(context.meters.text, settings.metrics_host, settings.metrics_port)
    await listener.start()
    context.metrics_url = listener.url
    context.log.info("metrics are at %s", listener.url)
    return listener


async def _live(context: Context[S], service: Service[S]) -> None:
    """Start, wait for the signal, drain."""
    log = context.log
    log.info("%s starts, incarnation %s", context.id, context.incarnation)
    await unless(context.stopping, service.start(context))
    if not context.stopping.is_set():
        log.info("%s is up", context.id)
        # What is there now stays: looking through it again and again would hold up requests.
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS)
    await context.stopping.wait()
    log.info("%s drains", context.id)
    context.state = "draining"
    drain_s = context.longest_drain_s or context.settings.drain_timeout_s
    await _bounded(service.drain(), drain_s, "drain", log)
    await _bounded(context.stop_serving(), STOP_TIMEOUT_S, "stop serving", log)
    log.info("%s stops", context.id)


async def _bounded(work: Any, timeout_s: float, what: str, log: logging.Logger) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        log.warning("%s took more than %g s and was cut off", what, timeout_s)
