"""A prefill instance in virtual time: a queue under the real discipline, computed in chunks."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.scheduling.queue_discipline import QueueDiscipline, Waiting
from shared.simulator.event_loop import EventLoop
from shared.simulator.hardware import Hardware
from shared.simulator.virtual_node import VirtualNode


@dataclass(slots=True)
class PrefillJob:
    waiting: Waiting
    num_tokens: int
    cached_tokens: int
    on_done: Callable[[], None]
    find_cached: Callable[[], int] | None = None
    """Asked when it starts: it may be more by then."""
    on_chunk: Callable[[int], None] | None = None
    """Told how many tokens of the prompt are there after each chunk."""
    done_tokens: int = 0
    started_s: float | None = None
    loaded_s: float = 0.0

    @property
    def compute_tokens(self) -> int:
        return self.num_tokens - self.cached_tokens


class VirtualPrefill:
    def __init__(
        self,
        instance_id: str,
        node: VirtualNode,
        hardware: Hardware,
        discipline: QueueDiscipline,
        chunk_tokens: int,
        loop: EventLoop,
    ) -> None:
        self.id = instance_id
        self.node = node
        self._hardware = hardware
        self.discipline = discipline
        self._chunk_tokens = chunk_tokens
        self._loop = loop
        self._jobs: dict[str, PrefillJob] = {}
        self.queue: list[Waiting] = []
        """In order of arrival."""
        self.busy_s = 0.0
        self._busy_until_s: float | None = None
        self._running: Waiting | None = None
        self._chunk_s = hardware.prefill_s(chunk_tokens, 0)

    @property
    def queued_tokens(self) -> int:
        return sum(job.compute_tokens - job.done_tokens for job in self._jobs.values())

    def work_s(self, now_s: float) -> float:
        """Predicted time of all that is queued, the rest of the running chunk included."""
        self.settle(now_s)
        return sum(one.remaining_s for one in self.queue)

    def wait_s(self, work_s: float, now_s: float) -> float:
        """Until a prompt of so much work that comes now would start."""
        self.settle(now_s)
        return self.discipline.wait_s(self.queue, work_s, now_s)

    def settle(self, now_s: float) -> None:
        """What the running chunk has done by now counts."""
        if self._running is not None and self._busy_until_s is not None:
            left_s = max(0.0, self._busy_until_s - now_s)
            self._running.remaining_s -= self._running.in_chunk_s - left_s
            self._running.in_chunk_s = left_s

    def add(self, job: PrefillJob) -> None:
        self._jobs[job.waiting.handle] = job
        self.queue.append(job.waiting)
        self._start_next()

    def loaded(self, handle: str) -> None:
        self._jobs[handle].waiting.is_loaded = True
        self._jobs[handle].loaded_s = self._loop.now_s
        self._start_next()

    def _start_next(self) -> None:
        if self._running is not None:
            return
        now_s = self._loop.now_s
        chosen = self.discipline.choose(self.queue, now_s, self._chunk_s)
        if chosen is None:
            return
        job = self._jobs[chosen.handle]
        if job.started_s is None:
            self._begin(job, now_s)
        chosen.has_started = True
        size = min(self._chunk_tokens, job.compute_tokens - job.done_tokens)
        prefix = job.cached_tokens + job.done_tokens
        is_last = job.done_tokens + size >= job.compute_tokens
        chunk_s = self._hardware.chunk_s(prefix + size, prefix, is_last=is_last)
        if not job.done_tokens:
            # The first chunk waits for the cached layers where they load longer than it computes.
            chunk_s = max(chunk_s, self._hardware.load_s(prefix))
        job.done_tokens += size
        self._running, self._busy_until_s = chosen, now_s + chunk_s
        chosen.in_chunk_s = chunk_s
        chosen.remaining_s = max(chosen.remaining_s, chunk_s)
        self.busy_s += chunk_s
        self._loop.at(now_s + chunk_s, self._end_chunk)

    def _begin(self, job: PrefillJob, now_s: float) -> None:
        job.started_s = now_s
        if job.find_cached is not None:
            cached = job.find_cached()
            if cached > job.cached_tokens:
                job.cached_tokens = cached
                job.waiting.remaining_s = self._hardware.prefill_s(job.num_tokens, cached)

    def _end_chunk(self) -> None:
        running = self._running
        assert running is not None
        self.settle(self._loop.now_s)
        running.in_chunk_s = 0.0
        self._running = self._busy_until_s = None
        job = self._jobs[running.handle]
        if job.on_chunk is not None:
            job.on_chunk(job.cached_tokens + job.done_tokens)
        if job.done_tokens >= job.compute_tokens:
            del self._jobs[running.handle]
            self.queue.remove(running)
            job.on_done()
        self._start_next()
