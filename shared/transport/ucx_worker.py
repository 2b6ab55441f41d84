"""One UCX worker: an address, an event fd, progress. Belongs to the thread that made it."""

from typing import Any

from shared.transport import ucx_abi as abi
from shared.transport.ucx_context import UcxContext, check


class UcxWorker:
    """`progress` until it returns 0 and `arm` says True; then the fd tells when to go on."""

    def __init__(self, context: UcxContext) -> None:
        library = self.library = context.library
        ffi, lib = library.ffi, library.lib
        params = ffi.new("ucp_worker_params_t *")
        params.field_mask = abi.WORKER_PARAM_THREAD_MODE | abi.WORKER_PARAM_FLAGS
        params.thread_mode = abi.THREAD_MODE_SINGLE
        # A worker is also destroyed to end requests that nothing else ends.
        params.flags = abi.WORKER_FLAG_IGNORE_REQUEST_LEAK
        worker = ffi.new("ucp_worker_h *")
        check(library, lib.ucp_worker_create(context.handle, params, worker), "ucp_worker_create")
        self.handle: Any = worker[0]
        number = ffi.new("int *")
        check(library, lib.ucp_worker_get_efd(self.handle, number), "ucp_worker_get_efd")
        self.event_fd = int(number[0])
        self.address = self._read_address()

    def progress(self) -> int:
        return int(self.library.lib.ucp_worker_progress(self.handle))

    def arm(self) -> bool:
        """False when something has happened since the last progress."""
        status = self.library.lib.ucp_worker_arm(self.handle)
        if status == abi.UCS_ERR_BUSY:
            return False
        check(self.library, status, "ucp_worker_arm")
        return True

    def destroy(self) -> None:
        """All of its connections end with it, also those that peers made."""
        self.library.lib.ucp_worker_destroy(self.handle)

    def _read_address(self) -> bytes:
        ffi, lib = self.library.ffi, self.library.lib
        attributes = ffi.new("ucp_worker_attr_t *")
        attributes.field_mask = abi.WORKER_ATTR_ADDRESS
        check(self.library, lib.ucp_worker_query(self.handle, attributes), "ucp_worker_query")
        try:
            return bytes(ffi.buffer(attributes.address, attributes.address_length))
        finally:
            lib.ucp_worker_release_address(self.handle, attributes.address)
