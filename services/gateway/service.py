"""Composition root of the gateway: builds the parts, serves HTTP and the bus, drains."""

import asyncio
import contextlib

from services.gateway.attempt_calls import AttemptCalls
from services.gateway.bills import Bills
from services.gateway.callers import Callers, load_callers
from services.gateway.cluster_view import ClusterView
from services.gateway.dashboard.feed import Feed
from services.gateway.dashboard.routes import DashboardApi
from services.gateway.generator import Generator, GeneratorLimits
from services.gateway.http_app import HealthApi, build_app
from services.gateway.http_server import CLIENT_IDLE_S, HttpServer
from services.gateway.instance_watch import InstanceWatch
from services.gateway.lost_attempts import LostAttempts
from services.gateway.metrics_api import MetricsApi
from services.gateway.openai_api import OpenAiApi
from services.gateway.prompts import PromptMaker
from services.gateway.recent import Recent
from services.gateway.request_driver import DriverParts
from services.gateway.request_metrics import RequestMetrics
from services.gateway.request_reader import RequestReader
from services.gateway.settings import GatewaySettings
from services.gateway.token_inbox import TokenInbox
from services.gateway.tools_api import ToolsApi
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.text_model import TextModel, load_text_model
from shared.messages import subjects
from shared.messages.bill import BillRequest, FinishedBill
from shared.messages.common import ErrorCode
from shared.messages.recent import RecentReply, RecentRequest
from shared.messages.reports import GatewayReport
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.runtime.heartbeat import Heartbeat
from shared.runtime.lifecycle import Context
from shared.runtime.micro import Endpoint
from shared.runtime.outcome_reporter import OutcomeReporter
from shared.runtime.unless import unless

CANCELS_OUT_S = 1.0
FIRST_LOOK_S = 5.0
"""On a socket that was given: for the first word of the cluster, before connections are taken."""
SUCCESSOR_SHARE = 0.5
"""Of MOONPOOL_DRAIN_TIMEOUT_S: for a successor to take over the socket."""


class GatewayService:
    """One gateway: HTTP on one side, the bus on the other."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._context: Context[GatewaySettings] | None = None
        self._view: ClusterView | None = None
        self._watch: InstanceWatch | None = None
        self._prompts: PromptMaker | None = None
        self._generator: Generator | None = None
        self._heartbeat: Heartbeat | None = None
        self._succeeded = asyncio.Event()
        """Another incarnation of this name is ready, while we drain."""
        self._http: HttpServer | None = None
        self._metrics = RequestMetrics()
        self._lost = LostAttempts()
        self._feed: Feed | None = None

    @property
    def url(self) -> str:
        return self._http.url if self._http is not None else ""

    @property
    def num_in_flight(self) -> int:
        return self._generator.num_in_flight if self._generator is not None else 0

    def abandon_all(self) -> None:
        """Every client gets an error, every instance a cancel."""
        if self._generator is not None:
            self._generator.abandon_all()

    async def start(self, context: Context[GatewaySettings]) -> None:
        self._context = context
        bus, tasks, settings = context.bus, context.tasks, self._settings
        text_model = await _load(settings.model)
        name = text_model.source.name
        view = self._view = ClusterView(bus, name, context.log)
        inbox = TokenInbox(bus, context.id, context.incarnation)
        watch = self._watch = InstanceWatch(bus, tasks)
        view.on_report_call(watch.on_report)
        bills = Bills(bus)
        recent = Recent(context.id, context.incarnation)
        prompts = self._prompts = PromptMaker(
            text_model,
            default_max_tokens=settings.default_max_tokens,
            max_message_bytes=bus.max_payload_bytes,
            max_prompt_tokens=settings.max_prompt_tokens,
        )
        callers = load_callers(
            keys_file=settings.api_keys_file,
            keys=settings.api_keys,
            admin_key=settings.admin_key,
            max_in_flight=settings.max_in_flight_per_key,
            max_priority=settings.max_priority,
        )
        calls = AttemptCalls(
            bus, context.id, context.incarnation, early_run_tokens=settings.early_run_tokens
        )
        outcomes = OutcomeReporter(bus, context.id)
        self._generator = Generator(
            bus=bus,
            parts=DriverParts(tasks, calls, inbox, watch, outcomes, self._on_lost),
            view=view,
            prompts=prompts,
            bills=bills,
            recent=recent,
            model_names=frozenset({name, settings.model}),
            callers=callers,
            limits=GeneratorLimits(
                request_timeout_s=settings.request_timeout_s,
                max_in_flight=settings.max_in_flight,
                shares_cache=settings.tenant_cache == "shared",
            ),
            metrics=self._metrics,
        )
        self._metrics.num_in_flight = lambda: self.num_in_flight
        self._metrics.late_chunks = lambda: inbox.late_chunks_total
        context.meters.add("gateway", self._metrics.readings)
        report_subject = subjects.report("gateway", context.id)
        await bus.subscribe(report_subject, GatewayReport, self._on_own_name)
        await inbox.start()
        await view.start()
        await context.serve(
            [_bill_endpoint(context.id, bills), _recent_endpoint(context.id, recent)],
            metadata={"model": name},
        )
        tasks.start_soon(view.keep_models(), name="models")
        if settings.http_fd is not None:
            # A successor works already: answers get the time that they may take at all.
            context.longest_drain_s = settings.request_timeout_s + CLIENT_IDLE_S
            # Whoever connects waits in the queue meanwhile, or is served by the one before us.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK_S):
                    await view.served.wait()
        self._start_http(bills, prompts, callers)
        self._heartbeat = Heartbeat(bus, report_subject, self._report)
        tasks.start_soon(self._heartbeat.run(), name="heartbeat")
        tasks.start_soon(outcomes.run(), name="outcomes")
        context.state = "ready"

    async def drain(self) -> None:
        """/ready turns 503 and all goes on for a while; then no more connections are taken, and
        what comes on those that are open is answered until the last one has ended.

        In a hurry new requests are refused instead, and only running ones finish.
        """
        context, http, generator = self._context, self._http, self._generator
        if context is None or http is None or generator is None:
            return
        if self._heartbeat is not None:
            self._heartbeat.poke()
        http.say_close()
        await unless(context.hurried, self._others_know())
        http.stop_accepting()
        if self._feed is not None:
            self._feed.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await unless(context.hurried, http.all_left())
        if self._succeeded.is_set():  # else nobody takes new connections meanwhile
            await unless(context.hurried, http.all_left())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await generator.close()

    async def _others_know(self) -> None:
        """Until new connections go elsewhere: to a successor on the same socket, or by the choice
        of a load balancer that asked /ready."""
        settings = self._settings
        wait_s = settings.drain_grace_s
        if settings.http_fd is not None:
            wait_s = settings.drain_timeout_s * SUCCESSOR_SHARE
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._succeeded.wait()

    async def stop(self) -> None:
        if self._generator is not None and self.num_in_flight:
            self.abandon_all()
            # Time for the cancels to reach the instances and the errors the clients.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCELS_OUT_S):
                    await self._generator.close()
        if self._feed is not None:
            self._feed.close()
        if self._http is not None:
            await self._http.stop()
        if self._prompts is not None:
            self._prompts.close()

    def _start_http(self, bills: Bills, prompts: PromptMaker, callers: Callers) -> None:
        context, view, generator = self._context, self._view, self._generator
        assert context is not None
        assert view is not None
        assert generator is not None
        settings = self._settings
        reader = RequestReader(
            callers, max_body_bytes=settings.max_body_bytes, check_open=generator.check_open
        )
        openai_api = OpenAiApi(generator, view, reader)
        tools_api = ToolsApi(generator, view, prompts, reader)
        health_api = HealthApi(
            is_connected=lambda: context.bus.is_connected,
            missing=lambda: self.missing,
            bills=bills,
            reader=reader,
        )
        metrics_api = MetricsApi(context.meters, reader)
        self._feed = Feed(context.bus, context.tasks, context.id, context.log)
        dashboard = DashboardApi(self._feed, reader)
        apis = (openai_api, tools_api, health_api, metrics_api, dashboard)
        app = build_app([route for api in apis for route in api.routes], self._metrics)
        self._http = HttpServer(
            app,
            settings.http_host,
            settings.http_port,
            fd=settings.http_fd,
            cert=settings.http_cert,
            key=settings.http_key,
        )
        context.tasks.start_soon(self._http.run(), name="http")
        context.log.info("serves %s/v1", self._http.url)

    @property
    def missing(self) -> str:
        """What keeps this gateway from serving; empty when it is ready."""
        context, view = self._context, self._view
        if context is None or view is None or context.state == "starting":
            return "the gateway is starting"
        if context.state == "draining":
            return "the gateway is draining"
        return view.missing if context.bus.is_connected else "not connected to NATS"

    def _on_own_name(self, report: GatewayReport) -> None:
        context, watch = self._context, self._watch
        assert context is not None
        assert watch is not None
        if report.incarnation == context.incarnation:
            watch.on_echo()
        elif report.state == "ready" and context.state == "draining":
            self._succeeded.set()

    def _on_lost(self, handle: str) -> None:
        self._lost.note(handle, monotonic_s())
        if self._heartbeat is not None:
            self._heartbeat.poke()

    def _report(self) -> GatewayReport:
        context = self._context
        assert context is not None
        return GatewayReport(
            id=context.id,
            incarnation=context.incarnation,
            state=context.state,
            in_flight=self.num_in_flight,
            http=self.url,
            lost_attempts=self._lost.current(monotonic_s()),
        )


async def _load(model: str) -> TextModel:
    try:
        return await asyncio.to_thread(load_text_model, model)
    except CheckpointError as error:
        raise ServiceError(ErrorCode.BAD_REQUEST, f"MOONPOOL_MODEL={model}: {error}") from error


def _bill_endpoint(gateway: str, bills: Bills) -> Endpoint[BillRequest, FinishedBill]:
    return Endpoint(
        name="bill",
        subject=subjects.gateway_bill(gateway),
        request_type=BillRequest,
        reply_type=FinishedBill,
        handler=bills.on_request,
        description="The bill of a request that this gateway served",
    )


def _recent_endpoint(gateway: str, recent: Recent) -> Endpoint[RecentRequest, RecentReply]:
    return Endpoint(
        name="recent",
        subject=subjects.gateway_recent(gateway),
        request_type=RecentRequest,
        reply_type=RecentReply,
        handler=recent.on_request,
        description="Requests that ended of late at this gateway: bills, decisions, refusals",
    )
