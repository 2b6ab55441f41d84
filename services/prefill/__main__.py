"""python -m services.prefill"""

from services.prefill.service import PrefillService
from shared.runtime.lifecycle import run_service
from shared.worker.settings import WorkerSettings

if __name__ == "__main__":
    run_service("prefill", WorkerSettings, PrefillService)
