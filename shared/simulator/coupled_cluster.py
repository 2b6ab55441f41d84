"""Coupled instances behind a router that balances tokens: the paper's vLLM baselines."""

from collections.abc import Callable, Sequence

from shared.kv.eviction.lru import LruEviction
from shared.kv.ids import BlockKey
from shared.simulator.event_loop import EventLoop
from shared.simulator.hardware import Hardware
from shared.simulator.outcome import Outcome, RequestOutcome
from shared.simulator.prefix_pool import key_of
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest
from shared.simulator.virtual_coupled import CoupledMode, Job, VirtualCoupled
from shared.simulator.virtual_node import VirtualNode


class _Instance:
    def __init__(self, name: str, hardware: Hardware, mode: CoupledMode, loop: EventLoop) -> None:
        self.name = name
        self.engine = VirtualCoupled(hardware, mode, loop)
        # Of its own memory, what the running requests do not hold.
        blocks = max(1, hardware.decode_capacity_tokens // BLOCK_TOKENS)
        self.cache = VirtualNode(name, blocks, LruEviction(), 1.0) if mode == "prefix" else None
        self.busy_s = 0.0


class CoupledCluster:
    def __init__(self, hardware: Hardware, mode: CoupledMode, num_instances: int = 16) -> None:
        self.loop = EventLoop()
        self._mode = mode
        self._instances = [
            _Instance(f"coupled-{number:03}", hardware, mode, self.loop)
            for number in range(num_instances)
        ]

    def run(
        self, requests: Sequence[TraceRequest], on_placed: Callable[[], None] = lambda: None
    ) -> Outcome:
        outcomes = []
        for number, trace in enumerate(requests):
            outcome = RequestOutcome(trace.arrival_s, trace.num_tokens)
            outcomes.append(outcome)

            def arrive(
                trace: TraceRequest = trace, outcome: RequestOutcome = outcome, handle: int = number
            ) -> None:
                self._arrive(trace, outcome, str(handle))
                on_placed()

            self.loop.at(trace.arrival_s, arrive)
        self.loop.run()
        return Outcome(
            policy=f"coupled, {self._mode}",
            requests=outcomes,
            span_s=self.loop.now_s,
            busy_by_prefill_s={one.name: one.busy_s for one in self._instances},
        )

    def _arrive(self, trace: TraceRequest, outcome: RequestOutcome, handle: str) -> None:
        chosen = min(self._instances, key=lambda one: one.engine.load_tokens)
        outcome.prefill = chosen.name
        keys = [key_of(block) for block in trace.blocks("served")] if chosen.cache else []
        job = Job(
            trace.num_tokens,
            max(1, trace.output_tokens),
            find_cached=lambda: self._cached(chosen, handle, keys, outcome),
            on_prefilled=lambda: self._prefilled(chosen, handle, keys, outcome, job),
            on_done=lambda tbt_s: self._done(chosen, handle, outcome, tbt_s),
        )
        chosen.engine.add(job)

    def _cached(
        self, chosen: _Instance, handle: str, keys: list[BlockKey], outcome: RequestOutcome
    ) -> int:
        outcome.queue_s = self.loop.now_s - outcome.arrival_s
        if chosen.cache is None:
            return 0
        held = chosen.cache.hold(handle, keys) * BLOCK_TOKENS
        last = (outcome.num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        outcome.local_tokens = min(held, last)
        return outcome.local_tokens

    def _prefilled(
        self,
        chosen: _Instance,
        handle: str,
        keys: list[BlockKey],
        outcome: RequestOutcome,
        job: Job,
    ) -> None:
        outcome.ttft_s = self.loop.now_s - outcome.arrival_s
        outcome.compute_s = job.gpu_s
        chosen.busy_s += job.gpu_s
        if chosen.cache is not None:
            chosen.cache.store(handle, keys, len(keys))

    def _done(self, chosen: _Instance, handle: str, outcome: RequestOutcome, tbt_s: float) -> None:
        outcome.tbt_s = tbt_s
        if chosen.cache is not None:
            chosen.cache.release(handle)
