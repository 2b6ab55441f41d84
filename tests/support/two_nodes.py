"""Two nodes inside the test process and the four workers on them."""

from dataclasses import dataclass

from tests.support.deadline import until
from tests.support.fake_pool import FakeNode
from tests.support.worker_bench import Worker, WorkerBench

NUM_SLOTS = 24


@dataclass
class TwoNodes:
    """`prefill` and `decode` are on node a, the far ones on node b."""

    bench: WorkerBench
    a: FakeNode
    b: FakeNode
    prefill: Worker
    decode: Worker
    far_prefill: Worker
    far_decode: Worker

    async def nothing_is_held(self, timeout_s: float = 10.0) -> None:
        """Every slot, lease, promise and bit of device cache has come back."""
        await until(
            lambda: not any(worker.num_attempts for worker in self.bench.workers),
            timeout_s=timeout_s,
            what="no attempts left",
        )
        assert (self.a.num_taken, self.b.num_taken) == (0, 0)
        for node in (self.a, self.b):
            node.pool.check_integrity()
        for worker in self.bench.workers:
            load = worker.load
            assert (load.queued_requests, load.queued_tokens, load.running) == (0, 0, 0)
            assert load.free_tokens == load.capacity_tokens
            assert worker.device_tokens == 0
