"""How the rdma transport shall be: plain values, and how settings say them. Loads no UCX."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_ENDPOINTS = 64
Writes = Literal["never", "fenced", "always"]


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """`library` is a path of libucp or empty; `ucx_options` as UCX names them, without UCX_."""

    library: str = ""
    ucx_options: Mapping[str, str] = field(default_factory=dict)
    max_endpoints: int = MAX_ENDPOINTS
    writes: Writes = "never"
    """Pools are read by peers and written by their owner. `fenced`: peers may write what they were
    leased, over connections that the owner can end; `always`: over cma too, which nobody can end.
    """

    @property
    def says_transports(self) -> bool:
        """Somebody chose what UCX uses: then it needs no RDMA device."""
        return "TLS" in self.ucx_options or "UCX_TLS" in os.environ


def parse_options(text: str) -> dict[str, str]:
    """`"TLS=rc NET_DEVICES=mlx5_0:1"` as a mapping; ValueError names what is wrong."""
    options: dict[str, str] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ValueError(f"{word!r} is not NAME=value; as in TLS=rc NET_DEVICES=mlx5_0:1")
        options[name.removeprefix("UCX_")] = value
    return options
