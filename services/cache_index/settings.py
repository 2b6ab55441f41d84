"""Settings of a cache-index."""

from pydantic import Field

from shared.runtime.settings import CommonSettings


class CacheIndexSettings(CommonSettings):
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0", pattern=r"^(redis|rediss|unix)://", repr=False
    )
