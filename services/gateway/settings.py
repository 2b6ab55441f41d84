"""Settings of the gateway."""

from pydantic import Field, SecretStr

from shared.runtime.settings import CommonSettings


class GatewaySettings(CommonSettings):
    model: str = Field(
        default="SmolLM2-135M-Instruct", min_length=1, description="the same as the workers'"
    )
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8000, ge=0, le=65_535, description="0: any free port")
    admin_key: SecretStr | None = Field(
        default=None, description="allows `placement`; without one it is refused"
    )
    request_timeout_s: float = Field(default=600.0, gt=0)
    max_body_bytes: int = Field(default=8 << 20, ge=1_024)
    default_max_tokens: int = Field(
        default=2_048, ge=1, description="length of a chat answer when the request sets none"
    )
