"""What both loops of a worker stand on, and what they say of their load."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.engine.loaded_model import LoadedModel
from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError
from shared.runtime.lifecycle import Context
from shared.scheduling.queue_discipline import DisciplineName
from shared.worker.compute import ComputeThread
from shared.worker.grid import Grid
from shared.worker.peer_watch import PeerWatch
from shared.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Made once per process."""

    context: Context[WorkerSettings]
    loaded: LoadedModel
    compute: ComputeThread
    grid: Grid
    watch: PeerWatch
    poke: Callable[[], None]
    """The load changed: report soon."""

    @property
    def context_tokens(self) -> int:
        return self.loaded.config.max_positions

    def room(self, num_tokens: int, max_tokens: int) -> int:
        """Tokens of device cache for prompt and answer."""
        return min(num_tokens + max_tokens, self.context_tokens)

    def check_addressee(self, incarnation: str) -> None:
        """Refuses what was meant for an earlier incarnation of this process."""
        if incarnation != self.context.incarnation:
            raise ServiceError(
                ErrorCode.VOID_INCARNATION,
                f"{self.context.id} is incarnation {self.context.incarnation}, not {incarnation}; "
                "place the request anew",
                field="incarnation",
                is_retryable=True,
            )


@dataclass(frozen=True, slots=True)
class Load:
    """The part of an instance's report that depends on its role."""

    queued_requests: int = 0
    queued_tokens: int = 0
    running: int = 0
    free_tokens: int = 0
    capacity_tokens: int = 0
    context_in_batch_tokens: int = 0
    expected_start_s: float = 0.0
    admit_tokens: int = 0
    preempted: int = 0
    saved_tokens: int = 0
    preemptions_total: int = 0
    discipline: DisciplineName = "fifo"
    work_by_size_s: tuple[float, ...] = ()
    prompts_by_size: tuple[float, ...] = ()
    computed_tokens_total: int = 0
    """Of prompts, or sampled."""
    compute_s_total: float = 0.0
    steps_total: int = 0
    """Decode: of the batch."""
    refused_total: int = 0
    """Decode: requests whose prefill was done."""


def not_reserved(handle: str) -> ServiceError:
    return ServiceError(
        ErrorCode.NOT_RESERVED,
        f"no reservation of {handle} is held here (it ended or was cancelled); place it anew",
        is_retryable=True,
    )


def pool_lost() -> ServiceError:
    return ServiceError(
        ErrorCode.POOL_LOST, "the pool of this node is gone; retry elsewhere", is_retryable=True
    )
