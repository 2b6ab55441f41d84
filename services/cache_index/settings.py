"""Settings of a cache-index."""

from pydantic import Field

from shared.runtime.settings import CommonSettings


class CacheIndexSettings(CommonSettings):
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0", pattern=r"^(redis|rediss|unix)://", repr=False
    )
    redis_cluster: bool = Field(
        default=False, description="redis_url names one node of a Redis or Valkey Cluster"
    )
    index_memory_bytes: int = Field(
        default=1 << 30, ge=1 << 20, description="budget of the index in memory"
    )
    redis_budget_bytes: int | None = Field(
        default=None, ge=1 << 20, description="budget of Redis, all masters together"
    )
