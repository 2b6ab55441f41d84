"""A coupled instance in virtual time: prefill and decode take turns on the same accelerators.

As vLLM 0.5 schedules: waiting prompts go first and stop the batch for as long as they compute; or
(chunked) a step carries every sequence of the batch and a chunk of one prompt. Cache, if any, is
the instance's own memory. The baseline of the paper; decides nothing that a conductor decides.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shared.simulator.event_loop import EventLoop
from shared.simulator.hardware import Hardware
from shared.simulator.virtual_decode import tbt_of

CoupledMode = Literal["plain", "prefix", "chunked"]
COUPLED_MODES: tuple[CoupledMode, ...] = ("plain", "prefix", "chunked")
STEP_TOKENS = 512
"""Tokens of a step with chunked prefill: vLLM 0.5's default."""
BATCHED_PROMPT_TOKENS = 2_048
"""Short prompts that fit in so many share a prefill step: vLLM 0.5's default."""
K = 1024.0


@dataclass(slots=True)
class Job:
    """A request at its instance. `find_cached` is asked when its prefill begins."""

    num_tokens: int
    output_tokens: int
    find_cached: Callable[[], int]
    on_prefilled: Callable[[], None]
    on_done: Callable[[float], None]
    cached_tokens: int = 0
    done_tokens: int = 0
    started_s: float | None = None
    gpu_s: float = 0.0
    """Time of the steps that computed its prompt."""
    first_step: int = 0
    stall_before_s: float = 0.0
    """Of the stall in front of its first step, what was over when it joined."""
    tokens_left: int = 0


class VirtualCoupled:
    def __init__(self, hardware: Hardware, mode: CoupledMode, loop: EventLoop) -> None:
        self._hardware, self._mode, self._loop = hardware, mode, loop
        self._waiting: deque[Job] = deque()
        self._batch: list[Job] = []
        self._steps: list[tuple[float, int]] = []
        """(seconds, how many): all decode steps, stalls in front of a step are part of it."""
        self._stall_s = 0.0
        self._context = 0
        self._room = hardware.decode_capacity_tokens
        self._version = 0
        self._began_s = 0.0
        self._is_decoding = False
        self._is_busy = False
        self.load_tokens = 0
        """Prompts not computed yet and contexts: what a router balances."""

    def add(self, job: Job) -> None:
        self._waiting.append(job)
        self.load_tokens += job.num_tokens
        if not self._is_busy:
            self._next()
        elif self._is_decoding:
            # The prompt is taken in at the next boundary of a step.
            passed_s = self._loop.now_s - self._began_s
            self._plan_steps(max(1, int(passed_s / self._step_s()) + 1))

    def _next(self) -> None:
        self._is_busy, self._is_decoding = True, False
        if self._mode == "chunked":
            if self._waiting and self._has_room(self._waiting[0]):
                self._mixed_step()
                return
        elif self._waiting and self._has_room(self._waiting[0]):
            self._prefill_step()
            return
        if not self._batch:
            self._is_busy = False
            return
        self._is_decoding = True
        self._began_s = self._loop.now_s
        self._plan_steps(min(job.tokens_left for job in self._batch))

    def _has_room(self, job: Job) -> bool:
        return job.started_s is not None or job.num_tokens + job.output_tokens <= self._room

    def _start(self, job: Job) -> None:
        if job.started_s is None:
            job.started_s = self._loop.now_s
            self._room -= job.num_tokens + job.output_tokens
            job.cached_tokens = job.find_cached()

    # --- the kinds of steps --------------------------------------------------------------------
    def _prefill_step(self) -> None:
        jobs: list[Job] = []
        tokens, seconds = 0, 0.0
        while self._waiting and self._has_room(self._waiting[0]):
            job = self._waiting[0]
            if jobs and tokens + job.num_tokens > BATCHED_PROMPT_TOKENS:
                break
            self._start(job)
            job.gpu_s = self._hardware.prefill_s(job.num_tokens, job.cached_tokens)
            seconds += job.gpu_s
            tokens += job.num_tokens
            jobs.append(self._waiting.popleft())
        self._loop.at(self._loop.now_s + seconds, lambda: self._prefilled(jobs, seconds))

    def _prefilled(self, jobs: list[Job], seconds: float) -> None:
        self._stall_s += seconds
        self._join(jobs)
        self._next()

    def _mixed_step(self) -> None:
        """A chunk and the batch in one pass: the weights are read once."""
        job = self._waiting[0]
        self._start(job)
        hardware = self._hardware
        prefix = job.cached_tokens + job.done_tokens
        chunk = min(max(1, STEP_TOKENS - len(self._batch)), job.num_tokens - prefix)
        chunk_s = hardware.prefill.seconds(prefix + chunk, prefix)
        step_s = max(chunk_s, hardware.decode_step_s) + self._batch_s()
        self._loop.at(self._loop.now_s + step_s, lambda: self._mixed(job, chunk, step_s))

    def _mixed(self, job: Job, chunk: int, step_s: float) -> None:
        job.done_tokens += chunk
        job.gpu_s += step_s
        if self._batch:
            self._count_steps(step_s, 1)
        if job.cached_tokens + job.done_tokens >= job.num_tokens:
            self._waiting.popleft()
            self._join([job])
        self._next()

    def _batch_s(self) -> float:
        hardware = self._hardware
        sequences_s = hardware.decode_sequence_s * len(self._batch)
        return sequences_s + hardware.decode_context_s * self._context / K

    def _step_s(self) -> float:
        return self._hardware.decode_step_s + self._batch_s()

    def _plan_steps(self, steps: int) -> None:
        self._version += 1
        version, step_s = self._version, self._step_s()
        self._loop.at(self._began_s + steps * step_s, lambda: self._decoded(steps, step_s, version))

    def _decoded(self, steps: int, step_s: float, version: int) -> None:
        if version == self._version:
            self._count_steps(step_s, steps)
            self._next()

    # --- the batch -----------------------------------------------------------------------------
    def _join(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.on_prefilled()
            job.tokens_left = job.output_tokens - 1
            if job.tokens_left < 1:
                self._leave(job, 0.0)
                continue
            job.first_step, job.stall_before_s = len(self._steps), self._stall_s
            self._batch.append(job)
            self._context += job.num_tokens

    def _count_steps(self, step_s: float, steps: int) -> None:
        if self._stall_s:
            self._steps.append((self._stall_s + step_s, 1))
            self._stall_s = 0.0
            if steps > 1:
                self._steps.append((step_s, steps - 1))
        else:
            self._steps.append((step_s, steps))
        self._context += steps * len(self._batch)
        ended = []
        for job in self._batch:
            job.tokens_left -= steps
            if job.tokens_left <= 0:
                ended.append(job)
        if ended:
            self._batch = [job for job in self._batch if job.tokens_left > 0]
            for job in ended:
                self._context -= job.num_tokens + job.output_tokens - 1
                own = self._steps[job.first_step :]
                own[0] = (own[0][0] - job.stall_before_s, own[0][1])
                self._leave(job, tbt_of(own))

    def _leave(self, job: Job, tbt_s: float) -> None:
        self._room += job.num_tokens + job.output_tokens
        self.load_tokens -= job.num_tokens
        job.on_done(tbt_s)
