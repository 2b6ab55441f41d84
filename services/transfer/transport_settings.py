"""Settings of how a node's KV moves to and from others."""

from pydantic import Field, field_validator

from shared.runtime.settings import CommonSettings
from shared.transport.listening import parse_ports
from shared.transport.opening import DEFAULT_ORDER, parse_names
from shared.transport.rdma_options import RdmaOptions, parse_options


class TransportSettings(CommonSettings):
    """Part of the settings of a transfer service."""

    transports: str = Field(
        default=DEFAULT_ORDER, description="what may move KV, the preferred one first"
    )
    tcp_host: str = Field(
        default="",
        description="address or name at which peers reach this node; unset: as NATS sees it",
    )
    tcp_ports: str = Field(
        default="", description="port, or range as in 7400-7499, to listen at; unset: a free one"
    )
    tcp_streams: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="streams to one peer; unset: one for two cores, 4 at most",
    )
    peer_bytes_in_flight: int = Field(
        default=256 << 20, ge=1 << 20, description="how much may be on its way from one peer"
    )

    ucx_library: str = Field(
        default="", description="path of libucp; unset: of nixl-cu12, else the system's"
    )
    ucx_options: str = Field(
        default="", description="options of UCX, as in TLS=rc NET_DEVICES=mlx5_0:1"
    )

    @property
    def rdma_options(self) -> RdmaOptions:
        return RdmaOptions(library=self.ucx_library, ucx_options=parse_options(self.ucx_options))

    @field_validator("transports")
    @classmethod
    def _are_known(cls, names: str) -> str:
        return ",".join(parse_names(names))

    @field_validator("tcp_ports")
    @classmethod
    def _are_ports(cls, ports: str) -> str:
        parse_ports(ports)
        return ports

    @field_validator("ucx_options")
    @classmethod
    def _are_options(cls, options: str) -> str:
        parse_options(options)
        return options
