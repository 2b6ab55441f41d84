"""python -m services.decode"""

from services.decode.service import DecodeService
from shared.runtime.lifecycle import run_service
from shared.worker.settings import WorkerSettings

if __name__ == "__main__":
    run_service("decode", WorkerSettings, DecodeService)
