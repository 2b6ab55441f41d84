"""Which prompt asks for its slots before its run has come, and whether it may keep them then."""

from shared.runtime.tasks import Tasks
from shared.worker.early_slots import EarlySlots
from shared.worker.prefill_job import PrefillJob
from shared.worker.prefill_queue import PrefillQueue
from shared.worker.prefix import Prefix
from shared.worker.prefix_holding import PrefixHolding


class EarlyTaking:
    """Owns whose turn it is to be early: one prompt of an instance at a time."""

    def __init__(self, tasks: Tasks, queue: PrefillQueue, holding: PrefixHolding) -> None:
        self._tasks = tasks
        self._queue = queue
        self._holding = holding
        self._holder: PrefillJob | None = None

    def ask(self, job: PrefillJob, prefix: Prefix) -> None:
        """Where it would compute at once and nothing more of its prefix is to come."""
        holder = self._holder
        is_after_others = len(self._queue) > (job.handle in self._queue)
        if is_after_others or (holder is not None and holder.early_slots is not None):
            return
        if self._holding.may_gain(job, prefix):
            return
        num_slots = self._holding.num_slots(job, prefix)
        job.early_slots = EarlySlots(self._tasks, job.session.client, job.handle, num_slots)
        self._holder = job

    async def settle(self, job: PrefillJob) -> None:
        """Its run has come: what does not fit any more goes back, with all that it holds."""
        if job.early_slots is not None and not self._fits(job, job.early_slots.num_slots):
            job.give_up_early()
            await job.session.client.release(job.handle)

    def _fits(self, job: PrefillJob, num_slots: int) -> bool:
        """Its turn is now, and it needs what it asked for."""
        prefix = job.prefix if job.reads_cache else Prefix()
        if prefix is None or len(self._queue) > 1 or self._holding.may_gain(job, prefix):
            return False
        return num_slots == self._holding.num_slots(job, prefix)
