"""Settings of a transfer service."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from services.transfer.transport_settings import TransportSettings
from shared.kv.eviction.registry import DEFAULT_EVICTION, EVICTION_POLICIES


class TransferSettings(TransportSettings):
    """`instance_id` is the node's name."""

    pool_bytes: int = Field(default=768 << 20, ge=4096, description="room for KV blocks")
    shared_dir: Path = Field(
        default=Path("/dev/shm/moonpool"),
        description="tmpfs folder that the transfers and workers of a host share",
    )
    copy_threads: int = Field(default=2, ge=1, le=64)
    checksum_threads: int = Field(default=2, ge=1, le=64)
    index_timeout_s: float = Field(default=2.0, gt=0.0)
    peer_timeout_s: float = Field(
        default=2.0, gt=0.0, description="how long another node may take to answer"
    )
    huge_pages: Literal["off", "try", "require"] = Field(
        default="off", description="2 MiB pages for the pool: a mounted hugetlbfs, or what merges"
    )
    numa_node: int | None = Field(
        default=None, ge=0, le=1023, description="where the pool's memory is; unset: anywhere"
    )
    eviction: str = Field(
        default=DEFAULT_EVICTION, description="which block goes first when room is needed"
    )
    free_low: float = Field(
        default=0.01, ge=0.0, le=0.5, description="below this free share, slots are freed ahead"
    )
    free_high: float = Field(default=0.03, ge=0.0, le=0.6, description="until so much is free")
    pin_share: float = Field(
        default=0.25, ge=0.0, le=0.9, description="part of the pool that operators can pin"
    )
    replicate_share: float = Field(
        default=0.25, gt=0.0, le=1.0, description="share of the time that replication may move"
    )
    drain_bytes: int = Field(
        default=1 << 30, ge=0, description="how much a node that leaves hands to others; 0: nothing"
    )
    ssd_dir: Path | None = Field(
        default=None, description="folder on an SSD for the second tier; unset: none"
    )
    ssd_bytes: int = Field(default=8 << 30, ge=4096, description="room in it for KV blocks")
    ssd_write: Literal["second_use", "demotion"] = Field(
        default="second_use", description="when a block is written to the SSD"
    )
    ssd_queue_blocks: int = Field(
        default=64, ge=1, description="blocks that wait to be written at most; more are not written"
    )
    ssd_threads: int = Field(default=4, ge=1, le=64, description="reads of the SSD at once")

    tenant_quotas: str | None = Field(default=None, description="refused: there are none yet")

    @field_validator("tenant_quotas")
    @classmethod
    def _is_unset(cls, quotas: str | None) -> None:
        if quotas is not None:
            raise ValueError("quotas of tenants over tiers are not supported; leave it unset")

    @field_validator("eviction")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in EVICTION_POLICIES:
            raise ValueError(f"must be one of {', '.join(EVICTION_POLICIES)}")
        return name
