"""`python -m services.transfer`: one node's pool."""

from services.transfer.service import TransferService
from services.transfer.settings import TransferSettings
from shared.runtime.lifecycle import run_service

if __name__ == "__main__":
    run_service("transfer", TransferSettings, TransferService)
