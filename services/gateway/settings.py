"""Settings of the gateway."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from services.gateway.body_parts import Priority
from shared.runtime.settings import CommonSettings


class GatewaySettings(CommonSettings):
    model: str = Field(
        default="SmolLM2-135M-Instruct", min_length=1, description="the same as the workers'"
    )
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8000, ge=0, le=65_535, description="0: any free port")
    http_fd: int | None = Field(
        default=None, ge=0, description="a listening socket that was passed on; in place of a port"
    )
    drain_grace_s: float = Field(
        default=1.0,
        ge=0.0,
        description="takes new connections for so long after SIGTERM, while /ready is 503",
    )
    http_cert: Path | None = Field(default=None, description="PEM chain: serve HTTPS")
    http_key: Path | None = Field(default=None, description="PEM key of http_cert")
    admin_key: SecretStr | None = Field(
        default=None, description="allows `placement`; without one it is refused"
    )
    api_keys_file: Path | None = Field(
        default=None, description='JSON: {"<tenant>": {"keys": ["<key>"]}}; without one all may ask'
    )
    api_keys: SecretStr | None = Field(default=None, description="the same JSON, beside the file")
    tenant_cache: Literal["own", "shared"] = Field(
        default="own", description="whether tenants find each other's cached blocks"
    )
    max_priority: Priority = "high"
    max_in_flight: int = Field(default=1_024, ge=1, description="answers of this gateway at once")
    max_in_flight_per_key: int = Field(default=256, ge=1, description="answers of a tenant at once")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="beside the model's context"
    )
    early_run_tokens: int = Field(
        default=1_024,
        ge=0,
        description="prompts up to this length go with the question for a place; 0: none",
    )
    request_timeout_s: float = Field(default=600.0, gt=0)
    max_body_bytes: int = Field(default=8 << 20, ge=1_024)
    default_max_tokens: int = Field(
        default=2_048, ge=1, description="length of a chat answer when the request sets none"
    )

    @model_validator(mode="after")
    def _cert_and_key_go_together(self) -> Self:
        if (self.http_cert is None) != (self.http_key is None):
            raise ValueError("MOONPOOL_HTTP_CERT and MOONPOOL_HTTP_KEY need each other")
        return self
