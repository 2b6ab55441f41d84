"""Advises how to split instances between prefill and decode, by simulating the trace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from scripts.cli.output import CommandError
from scripts.replay.plan import PlanSettings
from shared.scheduling.slo import Slo
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.hardware import load_hardware
from shared.simulator.outcome import mean
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import TraceRequest


def sweep(
    requests: Sequence[TraceRequest],
    plan: PlanSettings,
    num_instances: int,
    hardware: str,
    slo: Slo,
) -> list[dict[str, Any]]:
    """Every split. Prompts stay as recorded, their costs are scaled; answers are shortened."""
    try:
        machine = load_hardware(hardware).for_scaled_lengths(plan.scale)
    except ValueError as error:
        raise CommandError(str(error)) from None
    arrivals = [
        replace(
            one,
            arrival_s=one.arrival_s / plan.speed,
            output_tokens=max(1, round(one.output_tokens / plan.scale)),
        )
        for one in requests
    ]
    found = []
    for prefills in range(1, num_instances):
        decodes = num_instances - prefills
        settings = ClusterSettings(machine, num_prefills=prefills, num_decodes=decodes)
        outcome = SimulatedCluster(settings).run(arrivals)
        found.append(
            {
                "split": f"{prefills}P{decodes}D",
                "effective": outcome.effective(slo),
                "mean_ttft_s": outcome.mean_ttft_s,
                "mean_tbt_s": mean([one.tbt_s for one in outcome.served]),
                "refused": outcome.num_refused,
            }
        )
    return found


def sweep_table(splits: Sequence[dict[str, Any]], best: dict[str, Any]) -> Table:
    table = Table(title="split of roles, simulated", title_justify="left", box=SIMPLE_HEAD)
    for name in ("split", "within targets", "TTFT s", "TBT ms", "refused", ""):
        table.add_column(name, justify="right")
    for one in splits:
        table.add_row(
            one["split"], f"{one['effective']:.3f}", f"{one['mean_ttft_s']:.3f}",
            f"{1e3 * one['mean_tbt_s']:.1f}", str(one["refused"]), "best" if one is best else "",
        )  # fmt: skip
    return table
