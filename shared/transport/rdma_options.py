"""How the rdma transport shall be: plain values, no UCX."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_ENDPOINTS = 64


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """`library` is a path of libucp or empty; `ucx_options` as UCX names them, without UCX_."""

    library: str = ""
    ucx_options: Mapping[str, str] = field(default_factory=dict)
    max_endpoints: int = MAX_ENDPOINTS
    is_fenced: bool = True
    """Refuse writes that the peer could not stop by closing its side."""
