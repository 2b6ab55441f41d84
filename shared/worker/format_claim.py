"""Agrees with the deployment on the one kv_format of a model, before an instance is ready."""

import asyncio
import logging

from shared.kv.kv_format import KvFormat
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.index import ClaimFormat, ClaimReply
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.worker")
TIMEOUT_S = 2.0
PAUSE_S = 0.5


async def claim_format(bus: Bus, model: str, instance: str, kv_format: KvFormat) -> None:
    """Waits for cache-index. Raises FORMAT_MISMATCH with the fields that differ."""
    claim = ClaimFormat(model=model, instance=instance, kv_format=kv_format.to_dict())
    is_waiting_said = False
    while True:
        try:
            reply = await bus.request(
                subjects.INDEX_CLAIM_FORMAT, claim, ClaimReply, timeout_s=TIMEOUT_S
            )
            break
        except ServiceError as error:
            if not error.is_retryable:
                raise
            if not is_waiting_said:
                log.info("waiting for cache-index, which keeps the format of the KV: %s", error)
                is_waiting_said = True
        await asyncio.sleep(PAUSE_S)
    if not reply.is_accepted:
        raise ServiceError(ErrorCode.FORMAT_MISMATCH, _explain(model, kv_format, reply))


def _explain(model: str, kv_format: KvFormat, reply: ClaimReply) -> str:
    hint = ""
    try:
        theirs = KvFormat.from_dict(reply.current)
        differences = "; ".join(kv_format.differences(theirs))
        if _is_another_cpu(kv_format, theirs):
            hint = (
                "; other kernels multiply here, as on a host with another CPU: set "
                "MOONPOOL_KERNELS on all instances to those that each host has"
            )
    except (TypeError, ValueError) as error:
        differences = f"theirs is not readable here: {error}"
    return (
        f"the deployment serves {model} with another kv_format (mine != theirs): {differences}. "
        f"Start this instance with the same settings, or stop the others first{hint}"
    )


def _is_another_cpu(mine: KvFormat, theirs: KvFormat) -> bool:
    """Both multiply by our kernels, with other instructions: what a setting can make the same."""
    modes = {mine.linear_mode, theirs.linear_mode}
    is_ours = all(mode.endswith("-panels") for mode in modes)
    return is_ours and len(modes) > 1 and mine.dtype == theirs.dtype
