"""A prompt's cached prefix, from its reservation until it computes: held, given up, held again."""

from dataclasses import replace

from shared.kv import block_keys
from shared.runtime.clock import monotonic_s
from shared.telemetry import tracing
from shared.worker.grid import Grid
from shared.worker.prefill_job import PrefillJob
from shared.worker.prefix import Prefix, hold_prefix

LOOK_AGAIN_S = 0.05
"""What was held for so long may be longer now."""


class PrefixHolding:
    """Keeps nothing itself: what is held stands in the job."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    async def hold(self, job: PrefillJob) -> Prefix:
        """Fetched when reserved, held again when it was given up."""
        if not job.reads_cache:
            return Prefix()
        if job.prefix is None:
            max_blocks = self._grid.max_hit_blocks(job.num_tokens)
            chain = block_keys.take(job.chain, max_blocks)
            with tracing.span("load") as span:
                job.prefix = await hold_prefix(
                    job.session.client, job.ref, chain, job.source, job.remaining_s
                )
                span.set(job.prefix.told)
            job.held_s = monotonic_s()
        return job.prefix

    async def hold_in_turn(self, job: PrefillJob) -> Prefix:
        """While it waited others may have computed more of it, as it was perhaps placed for."""
        prefix = await self.hold(job)
        if job.has_slots or job.early_slots is not None or not self.may_gain(job, prefix):
            return prefix
        chain = block_keys.take(job.chain, self._grid.max_hit_blocks(job.num_tokens))
        longer = await hold_prefix(job.session.client, job.ref, chain, None)
        if longer.num_blocks > prefix.num_blocks:
            num_more = longer.num_blocks - prefix.num_blocks
            job.prefix = replace(
                prefix, blocks=longer.blocks, num_local=prefix.num_local + num_more
            )
        return job.prefix or prefix

    def may_find(self, job: PrefillJob) -> bool:
        """Whether there can be a cached prefix for it at all."""
        return job.reads_cache and bool(job.chain) and self._grid.max_hit_blocks(job.num_tokens) > 0

    def may_gain(self, job: PrefillJob, prefix: Prefix) -> bool:
        """Whether the pool may have more of its prefix by now."""
        if not job.reads_cache or not job.may_look_again:
            return False
        if prefix.num_blocks >= self._grid.max_hit_blocks(job.num_tokens):
            return False
        is_short = self.hit_tokens(job, prefix) < job.expected_cached_tokens
        return is_short or monotonic_s() - job.held_s > LOOK_AGAIN_S

    def hit_tokens(self, job: PrefillJob, prefix: Prefix) -> int:
        return self._hit_blocks(job, prefix) * self._grid.block_tokens

    def num_slots(self, job: PrefillJob, prefix: Prefix) -> int:
        """For what is to be computed beside it."""
        return self._grid.num_blocks(job.num_tokens) - self._hit_blocks(job, prefix)

    def _hit_blocks(self, job: PrefillJob, prefix: Prefix) -> int:
        return self._grid.hit_blocks(prefix.num_blocks, job.num_tokens)
