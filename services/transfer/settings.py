"""Settings of a transfer service."""

from pathlib import Path

from pydantic import Field

from services.transfer.transport_settings import TransportSettings


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
