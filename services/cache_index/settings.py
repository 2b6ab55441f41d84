"""Settings of a cache-index."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, model_validator

from shared.runtime.settings import CommonSettings


class CacheIndexSettings(CommonSettings):
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0", pattern=r"^(redis|rediss|unix)://", repr=False
    )
    redis_user: str | None = None
    redis_password: SecretStr | None = None
    redis_ca: Path | None = Field(
        default=None, description="PEM that verifies the server of a rediss:// URL"
    )
    redis_cert: Path | None = Field(default=None, description="PEM: shown to the server")
    redis_key: Path | None = Field(default=None, description="PEM key of redis_cert")

    def redis_options(self) -> dict[str, Any]:
        """What the URL does not say, for redis-py."""
        options: dict[str, Any] = {}
        if self.redis_user is not None:
            options["username"] = self.redis_user
        if self.redis_password is not None:
            options["password"] = self.redis_password.get_secret_value()
        files = {
            "ssl_ca_certs": self.redis_ca,
            "ssl_certfile": self.redis_cert,
            "ssl_keyfile": self.redis_key,
        }
        return options | {name: str(path) for name, path in files.items() if path is not None}

    @model_validator(mode="after")
    def _files_need_tls(self) -> Self:
        if self.redis_ca is not None and not self.redis_url.startswith("rediss://"):
            raise ValueError("MOONPOOL_REDIS_CA needs a MOONPOOL_REDIS_URL of rediss://")
        return self

    redis_cluster: bool = Field(
        default=False, description="redis_url names one node of a Redis or Valkey Cluster"
    )
    index_memory_bytes: int = Field(
        default=1 << 30, ge=1 << 20, description="budget of the index in memory"
    )
    redis_budget_bytes: int | None = Field(
        default=None, ge=1 << 20, description="budget of Redis, all masters together"
    )
