"""Tells the index which blocks this instance will have computed, and when. Hints, never promises.

Of each prompt only the last word waits to be sent: nothing grows while the bus is away.
"""

import asyncio
import logging
from collections.abc import Callable

from shared.kv import block_keys
from shared.messages import subjects
from shared.messages.common import InstanceRef
from shared.messages.index import Expected
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.worker.grid import Grid
from shared.worker.prefill_job import PrefillJob

log = logging.getLogger("moonpool.worker")
LATE_FACTOR = 1.5
LATE_MS = 2_000
"""How much later than said a hint is still worth something."""


class Expectations:
    """Owns what is not sent yet; `run` is a task of the service."""

    def __init__(
        self,
        bus: Bus,
        grid: Grid,
        root: bytes,
        instance: Callable[[PrefillJob], InstanceRef],
        work_s: Callable[[int, int], float],
    ) -> None:
        self._bus = bus
        self._grid = grid
        self._root = root
        self._instance = instance
        self._work_s = work_s
        self._unsent: dict[str, Expected] = {}
        self._told: set[str] = set()
        self._has_unsent = asyncio.Event()

    def accepted(self, job: PrefillJob, start_s: float) -> None:
        """A prompt waits; it will be computed from `start_s` on."""
        self._tell(job, job.expected_cached_tokens // self._grid.block_tokens, start_s)

    def computed(self, job: PrefillJob, num_blocks: int) -> None:
        """So many leading blocks of it are readable now."""
        self._tell(job, num_blocks, 0.0)

    def ended(self, job: PrefillJob) -> None:
        """Sealed to the end, cancelled or failed."""
        if job.handle in self._told:
            self._told.discard(job.handle)
            self._send(job, Expected(
                ref=job.ref, instance=self._instance(job), root=self._root, chain=b"",
                done_blocks=0, is_over=True,
            ))  # fmt: skip

    def _tell(self, job: PrefillJob, done_blocks: int, start_s: float) -> None:
        if not job.publishes or not job.chain:
            return
        shareable = self._grid.shareable_blocks(job.num_tokens)
        chain = block_keys.take(job.chain, shareable)
        num_left = block_keys.num_keys(chain) - done_blocks
        if num_left <= 0:
            self.ended(job)
            return
        block_tokens = self._grid.block_tokens
        left_s = self._work_s((done_blocks + num_left) * block_tokens, num_left * block_tokens)
        eta_ms = int((start_s + left_s) * 1000)
        self._told.add(job.handle)
        self._send(
            job,
            Expected(
                ref=job.ref,
                instance=self._instance(job),
                root=self._root,
                chain=chain,
                done_blocks=done_blocks,
                start_ms=int(start_s * 1000),
                eta_ms=eta_ms,
                ttl_ms=int(eta_ms * LATE_FACTOR) + LATE_MS,
            ),
        )

    def _send(self, job: PrefillJob, message: Expected) -> None:
        self._unsent[job.handle] = message
        self._has_unsent.set()

    async def run(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            while self._unsent:
                message = self._unsent.pop(next(iter(self._unsent)))
                try:
                    await self._bus.publish(subjects.INDEX_EXPECTED, message)
                except ServiceError as error:
                    log.debug("an expectation was not sent: %s", error)
