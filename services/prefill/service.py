"""The prefill service: a worker in the role of prefill."""

from shared.worker.instance import WorkerService
from shared.worker.settings import WorkerSettings


class PrefillService(WorkerService):
    """All it does is in shared/worker; here is only the role."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings, "prefill")
