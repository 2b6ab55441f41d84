"""What virtual instances say of themselves to the conductor, in its words."""

from collections.abc import Mapping
from typing import Any

from shared.scheduling.vocabulary import InstanceView
from shared.simulator.hardware import Hardware
from shared.simulator.virtual_decode import VirtualDecode
from shared.simulator.virtual_prefill import VirtualPrefill

Common = Mapping[str, Any]
"""Fields that all instances have in common."""


def common_fields(
    model: str, incarnation: str, block_tokens: int, grid_tokens: int, hardware: Hardware
) -> Common:
    return {
        "incarnation": incarnation,
        "node_incarnation": incarnation,
        "state": "ready",
        "model": model,
        "root": b"root",
        "kv_format": {},
        "block_tokens": block_tokens,
        "grid_tokens": grid_tokens,
        "block_bytes": block_tokens * hardware.kv_bytes_per_token,
        "context_tokens": 1 << 30,
    }


def prefill_view(prefill: VirtualPrefill, now_s: float, common: Common) -> InstanceView:
    work_s = prefill.work_s(now_s)
    profile = prefill.discipline.profile(prefill.queue, now_s)
    return InstanceView(
        **common,
        role="prefill",
        id=prefill.id,
        node=prefill.node.id,
        queued_requests=len(prefill.queue),
        queued_tokens=prefill.queued_tokens,
        expected_start_s=work_s,
        discipline=prefill.discipline.name,
        work_by_size_s=profile.work_s,
        prompts_by_size=profile.prompts,
    )


def decode_view(decode: VirtualDecode, node: str, common: Common) -> InstanceView:
    capacity = decode.hardware.decode_capacity_tokens
    return InstanceView(
        **common,
        role="decode",
        id=decode.id,
        node=node,
        running=decode.running,
        free_tokens=capacity - decode.room_tokens,
        capacity_tokens=capacity,
        context_in_batch_tokens=decode.context_tokens,
        queued_requests=decode.num_promised - decode.running,
        queued_tokens=decode.promised_context_tokens,
    )
