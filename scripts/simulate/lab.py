"""What an experiment is given and what it gives: rows beside the paper's, and charts of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scripts.charts.chart import Chart
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.coupled_cluster import CoupledCluster
from shared.simulator.outcome import Outcome
from shared.simulator.settings import ClusterSettings
from shared.simulator.toolagent import ToolAgentSettings, make_toolagent
from shared.simulator.trace import TraceRequest
from shared.simulator.virtual_coupled import CoupledMode

TRACES = ("conversation", "toolagent", "synthetic")
GENERATED_WHY = "toolagent: made from its published statistics, not the trace"


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    quantity: str
    ours: float
    paper: float | None = None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.paper if self.paper else None


@dataclass(slots=True)
class Report:
    rows: list[Row] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)


Tick = Callable[[], None]
StartRun = Callable[[str, int], Tick]
"""(name, number of requests): called for each of them."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Runs clusters for an experiment and shows how far they are."""

    base: ClusterSettings
    load: Callable[[str], list[TraceRequest]]
    start_run: StartRun

    def trace(self, name: str) -> list[TraceRequest]:
        """A public trace; `toolagent` is generated, for it is large and seldom at hand."""
        if name == "toolagent":
            return make_toolagent(ToolAgentSettings(seed=self.base.seed))
        return self.load(name)

    def run(self, requests: Sequence[TraceRequest], label: str = "", **changes: Any) -> Outcome:
        settings = replace(self.base, **changes)
        tick = self.start_run(label or settings.policy, len(requests))
        return SimulatedCluster(settings).run(requests, tick)

    def run_coupled(
        self, requests: Sequence[TraceRequest], mode: CoupledMode, num_instances: int
    ) -> Outcome:
        tick = self.start_run(f"coupled, {mode}", len(requests))
        return CoupledCluster(self.base.hardware, mode, num_instances).run(requests, tick)


Experiment = Callable[[Lab], Report]
