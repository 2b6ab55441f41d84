"""The same plan in the simulator, with the cluster's make and measured costs: how right it is."""

from typing import Any

from scripts.cli.output import CommandError
from scripts.replay.plan import Plan, PlannedRequest
from shared.kv.eviction.registry import DEFAULT_EVICTION
from shared.messages.conductor import StateReply
from shared.scheduling.replication import ReplicationSettings
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.hardware import Hardware, load_hardware
from shared.simulator.outcome import Outcome, mean
from shared.simulator.settings import ClusterSettings, Sites
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

REPORT_EVERY_S = 0.02
"""Instances report as soon as their load changes."""
MAX_SOURCES = 2
"""As conductors have it, if nothing else is set."""


def load_costs(hardware: str | None) -> Hardware:
    if hardware is None:
        raise CommandError(
            "--simulate: needs --hardware", hint="`moonpool bench calibrate` writes such a file"
        )
    try:
        return load_hardware(hardware)
    except ValueError as error:
        raise CommandError(str(error)) from None


def simulate_plan(plan: Plan, state: StateReply, costs: Hardware, policy: str | None) -> Outcome:
    """A block of the simulator stands for one of the cluster, so costs are scaled."""
    ready = [one for one in state.instances if one.state == "ready"]
    live_block, live_grid = ready[0].block_tokens, ready[0].grid_tokens
    slots = max((node.slots_total for node in state.nodes), default=0)
    scale, replication = BLOCK_TOKENS / live_block, state.replication
    settings = ClusterSettings(
        costs.for_scaled_lengths(scale),
        policy=policy or state.policy,
        sites=Sites(
            tuple(one.node for one in ready if one.service == "prefill"),
            tuple(one.node for one in ready if one.service == "decode"),
        ),
        pool_tokens=max(1, slots) * BLOCK_TOKENS,
        eviction=DEFAULT_EVICTION,
        discipline=next(one.discipline for one in ready if one.service == "prefill"),
        grid_tokens=round(live_grid * scale),
        chunk_tokens=round(live_grid * scale),
        report_every_s=REPORT_EVERY_S,
        max_sources=MAX_SOURCES,
        replication=ReplicationSettings() if replication and replication.is_on else None,
    )
    requests = trace_of(plan, live_block)
    return SimulatedCluster(settings).run(requests)


def trace_of(plan: Plan, live_block: int) -> list[TraceRequest]:
    """The plan in blocks of the cluster, each as long as a block of the simulator.

    An id of the plan names a block and all before it. So a live block is named by the id that its
    last token is in, and by its place; a prompt's own tokens make it its own block.
    """
    names: dict[tuple[int, int], int] = {}
    requests = []
    for number, planned in enumerate(plan.requests):
        ids = []
        for place in range(planned.num_tokens // live_block):
            at = ((place + 1) * live_block - 1) // planned.block_tokens
            known = planned.block_ids[at] if at < len(planned.block_ids) else -1 - number
            ids.append(names.setdefault((known, place), len(names)))
        num_tokens = len(ids) * BLOCK_TOKENS + _rest(planned, live_block)
        requests.append(TraceRequest(planned.at_s, num_tokens, planned.output_tokens, tuple(ids)))
    return requests


def _rest(planned: PlannedRequest, live_block: int) -> int:
    """Of the last block, which is not full."""
    return round(planned.num_tokens % live_block * BLOCK_TOKENS / live_block)


def beside(
    measured: dict[str, Any], outcome: Outcome, plan: Plan, state: StateReply
) -> dict[str, Any]:
    """Simulated over live, for what both have.

    `stages` is TTFT less what is neither waiting, loading nor computing: what HTTP, messages and a
    busy machine add to the real one is not in it.
    """
    stages_s = mean([max(one.queue_s, one.load_s) + one.compute_s for one in outcome.served])
    cached = sum(one.local_tokens + one.fetched_tokens for one in outcome.served)
    cached_tokens = round(cached * state.instances[0].block_tokens / BLOCK_TOKENS)
    return {
        "mean_ttft_s": outcome.mean_ttft_s,
        "ttft_to_live": outcome.mean_ttft_s / max(measured["mean_ttft_s"], 1e-9),
        "stages_to_live": stages_s / max(measured["mean_stages_s"], 1e-9),
        "cached_tokens": cached_tokens,
        "cached_to_live": cached_tokens / max(measured["cached_tokens"], 1),
    }
