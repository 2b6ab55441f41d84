"""The same plan in the simulator, with the cluster's size and measured costs: how right it is."""

from typing import Any

from scripts.cli.output import CommandError
from scripts.replay.plan import Plan, PlannedRequest
from shared.messages.conductor import StateReply
from shared.simulator.cluster import ClusterSettings, SimulatedCluster
from shared.simulator.hardware import Hardware, load_hardware
from shared.simulator.outcome import Outcome
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest


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
    """A block of the trace stands for the plan's shorter one, so its costs are scaled."""
    block_tokens = plan.requests[0].block_tokens
    scale = BLOCK_TOKENS / block_tokens
    ready = [one for one in state.instances if one.state == "ready"]
    prefills = sum(one.service == "prefill" for one in ready)
    decodes = sum(one.service == "decode" for one in ready)
    slots = max((node.slots_total for node in state.nodes), default=0)
    live_block = next(one.block_tokens for one in ready)
    settings = ClusterSettings(
        costs.for_scaled_lengths(scale),
        policy=policy or state.policy,
        num_prefills=prefills,
        num_decodes=decodes,
        pool_tokens=max(BLOCK_TOKENS, round(slots * live_block * scale)),
        chunk_tokens=max(BLOCK_TOKENS, round(live_block * scale)),
    )
    return SimulatedCluster(settings).run([_request(one, scale) for one in plan.requests])


def _request(planned: PlannedRequest, scale: float) -> TraceRequest:
    num_tokens = max(1, round(planned.num_tokens * scale))
    ids = planned.block_ids[: -(-num_tokens // BLOCK_TOKENS)]
    return TraceRequest(planned.at_s, num_tokens, planned.output_tokens, ids)


def beside(measured: dict[str, Any], outcome: Outcome, scale: float) -> dict[str, Any]:
    """Simulated over live, for what both have."""
    cached = sum(one.local_tokens + one.fetched_tokens for one in outcome.served) / scale
    return {
        "mean_ttft_s": outcome.mean_ttft_s,
        "ttft_to_live": outcome.mean_ttft_s / max(measured["mean_ttft_s"], 1e-9),
        "cached_tokens": cached,
        "cached_to_live": cached / max(measured["cached_tokens"], 1),
    }


def scale_of(plan: Plan) -> float:
    return BLOCK_TOKENS / plan.requests[0].block_tokens
