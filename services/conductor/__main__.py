"""`python -m services.conductor`."""

from services.conductor.service import ConductorService
from services.conductor.settings import ConductorSettings
from shared.runtime.lifecycle import run_service

if __name__ == "__main__":
    run_service("conductor", ConductorSettings, ConductorService)
