"""What the gateway knows of the cluster: models from the conductor, instances from reports."""

import asyncio
import logging
from collections.abc import Callable

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import ModelInfo, ModelsReply
from shared.messages.reports import LEASE_S, InstanceReport
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

RETRY_S = 1.0
REFRESH_S = 30.0
ASK_TIMEOUT_S = 2.0
FORGET_S = 60.0


class ClusterView:
    """Owns the latest report of each instance and the model's entry. Places nothing."""

    def __init__(self, bus: Bus, model: str, log: logging.Logger) -> None:
        self._bus = bus
        self._log = log
        self._model_name = model
        self._reports: dict[tuple[str, str], tuple[InstanceReport, float]] = {}
        self._listeners: list[Callable[[InstanceReport], None]] = []
        self._changed = asyncio.Event()
        self.model: ModelInfo | None = None
        self.served = asyncio.Event()
        """Once nothing was missing."""

    def on_report_call(self, listener: Callable[[InstanceReport], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        for service in ("prefill", "decode"):
            subject = subjects.report(service, "*")
            await self._bus.subscribe(subject, InstanceReport, self.note)

    def note(self, report: InstanceReport) -> None:
        """Take in a report; a new deployment of the model asks the conductor at once."""
        now_s = monotonic_s()
        key = (report.service, report.id)
        if key not in self._reports:
            self._reports = {k: v for k, v in self._reports.items() if now_s - v[1] < FORGET_S}
        before = self._reports.get(key)
        self._reports[key] = (report, now_s)
        is_news = before is None or (before[0].incarnation, before[0].state) != (
            report.incarnation,
            report.state,
        )
        if is_news and report.model == self._model_name and report.state == "ready":
            known = self.model
            if known is None or report.root != known.root:
                self._changed.set()
        self._note_if_served()
        for listener in self._listeners:
            listener(report)

    async def keep_models(self) -> None:
        """Ask the conductor each second while nothing is known, then rarely and on a change."""
        while True:
            self._changed.clear()
            await self._ask()
            try:
                pause_s = RETRY_S if self.model is None else REFRESH_S
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
                # Reports go on while the conductor learns the same: do not ask at their pace.
                await asyncio.sleep(RETRY_S / 4)
            except TimeoutError:
                continue

    async def _ask(self) -> None:
        try:
            reply = await self._bus.request(
                subjects.CONDUCTOR_MODELS, Empty(), ModelsReply, timeout_s=ASK_TIMEOUT_S
            )
        except ServiceError as error:
            self._log.debug("conductor does not name its models: %s", error)
            return
        found = next((one for one in reply.models if one.name == self._model_name), None)
        # A model that nobody serves for a moment keeps its root: the key format is set once.
        if found is not None and found != self.model:
            self._log.info("model %s: context %d tokens", found.name, found.context_tokens)
            self.model = found
            self._note_if_served()

    def _note_if_served(self) -> None:
        if not self.served.is_set() and not self.missing:
            self.served.set()

    def num_ready(self, service: str) -> int:
        """Instances of the model that reported ready within the lease."""
        now_s = monotonic_s()
        return sum(
            1
            for report, heard_s in self._reports.values()
            if report.service == service
            and report.state == "ready"
            and report.model == self._model_name
            and now_s - heard_s < LEASE_S
        )

    @property
    def missing(self) -> str:
        """What keeps the cluster from serving; empty when it can."""
        if self.model is None:
            return f"no conductor knows ready instances of {self._model_name} yet"
        for service in ("prefill", "decode"):
            if not self.num_ready(service):
                return f"no {service} instance of {self._model_name} is ready"
        return ""
