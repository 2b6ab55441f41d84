"""Whether the transfer behind an attachment still answers. A stopped one keeps its socket open."""

import asyncio
import logging

from shared.messages.common import Empty, ErrorCode
from shared.messages.pool import PoolDescription
from shared.runtime.errors import ServiceError
from shared.worker.pool_connection import PoolConnection

log = logging.getLogger("moonpool.pool_client")
PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 1.0
MAX_MISSES = 2
"""More than one: after a stop of our own, an answer that is there already may look late."""


async def wait_lost(attached: PoolConnection) -> None:
    """Until the connection is lost; one whose transfer falls silent is given up.

    Asks over a socket of its own: on the attached one a question may wait behind slow calls.
    """
    probe: PoolConnection | None = None
    num_misses = 0
    try:
        while not await _is_lost_within(attached, 0.0 if num_misses else PROBE_INTERVAL_S):
            try:
                if probe is None or probe.lost.is_set():
                    probe = await PoolConnection.connect(attached.path)
                await probe.call("describe", Empty(), PoolDescription, timeout_s=PROBE_TIMEOUT_S)
                num_misses = 0
            except (ServiceError, OSError, TimeoutError) as error:
                is_silent = isinstance(error, TimeoutError) or (
                    isinstance(error, ServiceError) and error.code == ErrorCode.DEADLINE
                )
                num_misses = num_misses + 1 if is_silent else 0
            if num_misses >= MAX_MISSES:
                log.warning("the transfer behind %s does not answer", attached.path.name)
                attached.give_up()
    finally:
        if probe is not None:
            probe.close()


async def _is_lost_within(attached: PoolConnection, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await attached.lost.wait()
    except TimeoutError:
        pass
    return attached.lost.is_set()
