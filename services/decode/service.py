"""The decode service: a worker in the role of decode."""

from shared.worker.instance import WorkerService
from shared.worker.settings import WorkerSettings


class DecodeService(WorkerService):
    """All it does is in shared/worker; here is only the role."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings, "decode")
