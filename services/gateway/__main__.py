"""`python -m services.gateway`: the OpenAI API of a moonpool cluster."""

from services.gateway.service import GatewayService
from services.gateway.settings import GatewaySettings
from shared.runtime.lifecycle import run_service

if __name__ == "__main__":
    run_service("gateway", GatewaySettings, GatewayService)
