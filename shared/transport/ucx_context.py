"""A UCX context: its configuration, what it sees, memory registered with it.

Used by one thread at a time. Knows no peers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shared.transport import ucx_abi as abi
from shared.transport.ucx_library import UcxLibrary

API_VERSION = (1, 22)
DEFAULTS = {
    # Peer error mode gives up cma unless no message may be sent by rendezvous.
    "RNDV_THRESH": "inf",
    "MAX_RMA_RAILS": "2",
    # A dead peer ends its requests after 3 * 50 ms and back-off instead of after a minute.
    "RC_TIMEOUT": "50ms",
    "RC_RETRY_COUNT": "3",
    "IB_PCI_RELAXED_ORDERING": "try",
    # With the default of 8 KiB writes over tcp are half as fast.
    "TCP_TX_SEG_SIZE": "256K",
    "TCP_RX_SEG_SIZE": "256K",
    # Idle endpoints are looked after, at the price of a wake-up each time.
    "KEEPALIVE_INTERVAL": "5s",
}
RDMA_TRANSPORTS = ("rc_", "dc_", "ud_", "srd", "gga_")


class UcxError(Exception):
    """UCX refused a call."""


@dataclass(frozen=True, slots=True)
class UcxResource:
    """One way that UCX sees here: `rc_verbs` over `mlx5_0:1`, `tcp` over `eth0`, `cma`."""

    transport: str
    device: str

    @property
    def is_rdma(self) -> bool:
        return self.transport.startswith(RDMA_TRANSPORTS)


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Registered memory of this process."""

    address: int
    num_bytes: int
    rkey: bytes
    handle: Any


class UcxContext:
    """An open context; `close` after all of its workers."""

    def __init__(self, library: UcxLibrary, handle: Any) -> None:
        self.library = library
        self.handle = handle
        self._regions: list[Region] = []

    @classmethod
    def open(cls, library: UcxLibrary, options: Mapping[str, str]) -> Self:
        """With our defaults, then UCX_... of the environment, then `options`."""
        ffi, lib = library.ffi, library.lib
        found = ffi.new("ucp_config_t **")
        check(library, lib.ucp_config_read(ffi.NULL, ffi.NULL, found), "ucp_config_read")
        config = found[0]
        try:
            defaults = {k: v for k, v in DEFAULTS.items() if f"UCX_{k}" not in os.environ}
            for name, value in (defaults | dict(options)).items():
                status = lib.ucp_config_modify(config, name.encode(), value.encode())
                if status != abi.UCS_OK:
                    raise UcxError(
                        f"MOONPOOL_UCX_OPTIONS: UCX does not take {name}={value}: "
                        f"{library.status_text(status)}"
                    )
            params = ffi.new("ucp_params_t *")
            params.field_mask = abi.PARAM_FEATURES
            params.features = abi.FEATURE_RMA | abi.FEATURE_WAKEUP
            context = ffi.new("ucp_context_h *")
            status = lib.ucp_init_version(*API_VERSION, params, config, context)
            check(library, status, "ucp_init")
        finally:
            lib.ucp_config_release(config)
        return cls(library, context[0])

    def register(self, address: int, num_bytes: int) -> Region:
        """Once for a whole pool: devices pin it. UCX lets peers with the key read and write it."""
        ffi, lib = self.library.ffi, self.library.lib
        params = ffi.new("ucp_mem_map_params_t *")
        params.field_mask = abi.MEM_MAP_ADDRESS | abi.MEM_MAP_LENGTH
        params.address = ffi.cast("void *", address)
        params.length = num_bytes
        handle = ffi.new("ucp_mem_h *")
        status = lib.ucp_mem_map(self.handle, params, handle)
        if status != abi.UCS_OK:
            raise UcxError(
                f"{num_bytes} bytes cannot be registered: {self.library.status_text(status)}. "
                "Devices pin memory: raise the limit (ulimit -l unlimited, docker: --ulimit "
                "memlock=-1)"
            )
        region = Region(address, num_bytes, self._packed_key(handle[0]), handle[0])
        self._regions.append(region)
        return region

    def _packed_key(self, handle: Any) -> bytes:
        ffi, lib = self.library.ffi, self.library.lib
        buffer, size = ffi.new("void **"), ffi.new("size_t *")
        status = lib.ucp_rkey_pack(self.handle, handle, buffer, size)
        check(self.library, status, "ucp_rkey_pack")
        try:
            return bytes(ffi.buffer(buffer[0], size[0]))
        finally:
            lib.ucp_rkey_buffer_release(buffer[0])

    def resources(self) -> list[UcxResource]:
        """What this context may use, as UCX itself prints it; it has no other way to tell."""
        found = []
        for line in self._printed().splitlines():
            _, arrow, name = line.partition("-- ")
            transport, slash, device = name.strip().partition("/")
            if "resource" in line and arrow and slash:
                found.append(UcxResource(transport, device))
        return found

    def _printed(self) -> str:
        ffi = self.library.ffi
        libc = ffi.dlopen(None)
        text, size = ffi.new("char **"), ffi.new("size_t *")
        stream = libc.open_memstream(text, size)
        self.library.lib.ucp_context_print_info(self.handle, stream)
        libc.fclose(stream)
        try:
            return bytes(ffi.buffer(text[0], size[0])).decode(errors="replace")
        finally:
            libc.free(text[0])

    def close(self) -> None:
        lib = self.library.lib
        for region in self._regions:
            lib.ucp_mem_unmap(self.handle, region.handle)
        self._regions.clear()
        lib.ucp_cleanup(self.handle)


def check(library: UcxLibrary, status: int, what: str) -> None:
    """UcxError unless the status is OK."""
    if status != abi.UCS_OK:
        raise UcxError(f"{what}: {library.status_text(status)}")
