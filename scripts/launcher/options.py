"""What a cluster on this machine is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_POOL_BYTES = 768 << 20
DEFAULT_DECODE_TOKENS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The defaults fit a machine with 2 cores and 8 GB."""

    model: str = DEFAULT_MODEL
    nodes: int = 2
    prefill_per_node: int = 1
    decode_per_node: int = 1
    both_per_node: int = 0
    """Workers that do both; with some of them the other two may be 0."""
    gateways: int = 1
    conductors: int = 1
    cache_indexes: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    """Of the first gateway; 0 takes a free one, as the other gateways always do."""
    name: str | None = None
    """Of the only node; its workers are named after it. None numbers nodes and workers."""
    nats_host: str = "127.0.0.1"
    """Where the NATS that it starts listens, and port; another address lets other hosts join."""
    nats_port: int = 0
    nats_url: str | None = None
    """A NATS that runs already; None starts one."""
    redis_url: str | None = None
    credentials: Path | None = None
    """A set made before, for servers that run already; None makes one for the servers it starts."""
    http_cert: Path | None = None
    http_key: Path | None = None
    """Of the gateways; without them they speak plain HTTP."""
    pool_bytes: int = DEFAULT_POOL_BYTES
    decode_tokens: int = DEFAULT_DECODE_TOKENS
    dtype: str | None = None
    """This and what follows: None leaves the service's own default."""
    mode: str | None = None
    block_tokens: int | None = None
    policy: str | None = None
    admission: str | None = None
    timed_by: str | None = None
    """A hardware profile: workers of a dummy model take its times instead of computing."""
    threads: int | None = None
    """Of each worker; None shares the cores out."""
    admin_key: str | None = None
    """Allows `placement`; None takes a random one."""
    log_level: str = "INFO"
    drain_timeout_s: float = 10.0
    run_dir: Path | None = None
    """Holds logs and sockets, made and removed by the cluster; None takes a new folder."""
    is_keeping_logs: bool = False
    extra_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """More variables by process name (`prefill-1`) or service name (`prefill`)."""
