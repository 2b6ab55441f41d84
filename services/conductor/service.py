"""Composition root of a conductor."""

import logging
import random
import secrets

from services.conductor.asked_sharing import AskedSharing
from services.conductor.convert import slo_of_ms
from services.conductor.driver import Driver
from services.conductor.handlers import Handlers
from services.conductor.journal_file import JournalFile
from services.conductor.readings import ConductorReadings
from services.conductor.replicating import Replicating
from services.conductor.settings import ConductorSettings
from shared.decisions.profile_file import load_profile
from shared.messages import subjects
from shared.messages.bill import FinishedBill
from shared.messages.conductor import Asked, Misses
from shared.messages.outcomes import Outcomes
from shared.messages.reports import LEASE_S, GatewayReport, InstanceReport, NodeReport
from shared.runtime.clock import monotonic_s
from shared.runtime.lifecycle import Context
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.cost_model import CostProfile
from shared.scheduling.replication import ReplicationSettings


class ConductorService:
    def __init__(self, settings: ConductorSettings) -> None:
        self._settings = settings
        self._log = logging.getLogger("moonpool.conductor")
        self._driver: Driver | None = None
        self._journal: JournalFile | None = None
        self.replicating: Replicating | None = None

    async def start(self, context: Context[ConductorSettings]) -> None:
        settings, bus = self._settings, context.bus
        seed = secrets.randbits(32)
        core_settings = core_settings_of(settings)
        core = ConductorCore(core_settings, random.Random(seed))
        if settings.journal is not None:
            header = f"# seed {seed}, {core_settings}"
            self._journal = JournalFile(settings.journal, header, self._log)
            context.tasks.start_soon(self._journal.run(), name="journal")
        handlers = Handlers(context.id, bus, core, monotonic_s, settings.match_timeout_ms / 1e3)
        self._driver = handlers.driver = Driver(
            core, bus, context.tasks, monotonic_s, handlers.on_gone, self._journal, self._log
        )
        handlers.journal = self._journal
        readings = ConductorReadings(handlers.decisions, handlers.state_now)
        context.meters.add("conductor", readings.readings)
        if settings.replication == "on":
            await self._start_replication(context, core, handlers)
        asking = AskedSharing(context.id, bus, handlers.feed, self._log)
        self._driver.on_asked = asking.on_asked
        await bus.subscribe(subjects.CONDUCTOR_ASKED, Asked, asking.hear)
        context.tasks.start_soon(asking.run(), name="asked")
        for role in ("prefill", "decode"):
            await bus.subscribe(subjects.report(role, "*"), InstanceReport, handlers.on_instance)
        await bus.subscribe(subjects.report("transfer", "*"), NodeReport, handlers.on_node)
        await bus.subscribe(subjects.report("gateway", "*"), GatewayReport, handlers.on_gateway)
        await bus.subscribe(subjects.FINISHED_BILLS, FinishedBill, handlers.on_bill)
        await bus.subscribe(subjects.CONDUCTOR_OUTCOMES, Outcomes, handlers.on_outcomes)
        await context.serve(handlers.endpoints(), metadata={"policy": settings.policy})
        context.state = "ready"

    async def _start_replication(
        self, context: Context[ConductorSettings], core: ConductorCore, handlers: Handlers
    ) -> None:
        budget = ReplicationSettings(budget_bytes_per_s=self._settings.replication_bytes_per_s)
        replicating = Replicating(
            context.id, context.bus, context.tasks, core, handlers.nodes, budget, monotonic_s,
            self._log,
        )  # fmt: skip
        self.replicating = handlers.replicating = replicating
        assert handlers.driver is not None
        handlers.driver.on_placed = replicating.on_placed
        await context.bus.subscribe(subjects.CONDUCTOR_MISSES, Misses, replicating.on_misses)
        context.tasks.start_soon(replicating.run(), name="replication")

    async def drain(self) -> None:
        """Placements end by themselves within a second; the micro service stops after this."""
        if self._driver is not None:
            await self._driver.idle()

    async def stop(self) -> None:
        if self._driver is not None:
            self._driver.stop()
        if self.replicating is not None:
            await self.replicating.stop()
        if self._journal is not None:
            await self._journal.flush()


def core_settings_of(settings: ConductorSettings) -> CoreSettings:
    return CoreSettings(
        policy=settings.policy,
        balancing_threshold=settings.balancing_threshold,
        max_sources=settings.max_sources,
        lease_s=LEASE_S,
        admission=settings.admission,
        slo=slo_of_ms(settings.ttft_slo_ms, settings.tbt_slo_ms),
        model_slos={
            model: slo_of_ms(slo.ttft_ms, slo.tbt_ms) for model, slo in settings.model_slos.items()
        },
        profile=CostProfile() if settings.profile is None else load_profile(settings.profile),
    )
