"""One connection to a peer and the jobs that run over it. Used on the UCX thread alone.

A single get or put cannot be taken back: to end some, the whole endpoint is closed. A job has ended
only when none of its requests can touch memory any more.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shared.transport import ucx_abi as abi
from shared.transport.base import RdmaAddress
from shared.transport.ucx_context import Region, UcxError, UcxResource, check
from shared.transport.ucx_worker import UcxWorker

WINDOW_BYTES = 32 << 20
"""In flight per peer: what an abort may have to wait for."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One get or put between registered memory here and the peer's table or data."""

    kind: Literal["get", "put"]
    where: Literal["table", "data"]
    region: Region
    address: int
    remote_address: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Until all puts before it are in the peer's memory."""


Step = Sequence[Operation] | Flush


@dataclass(slots=True, eq=False)
class Job:
    """Steps made one after the other: the next when all requests of one have settled.

    `on_end` is called once on the UCX thread: with the result, or with why there is none.
    """

    steps: Generator[Step, None, int]
    on_end: Callable[[int, str], None]
    is_stopped: bool = False
    operations: deque[Operation | Flush] = field(default_factory=deque)
    in_flight: deque[tuple[Any, int]] = field(default_factory=deque)
    """Requests and their bytes, oldest first."""

    def begin_step(self) -> int | None:
        """The result when there is no further step."""
        try:
            step = next(self.steps)
        except StopIteration as end:
            return int(end.value)
        self.operations.extend([step] if isinstance(step, Flush) else step)
        return None


class UcxEndpoint:
    """From `on_work` on `advance` is to be called after each progress, until `is_idle`."""

    def __init__(
        self,
        worker: Callable[[], UcxWorker],
        address: RdmaAddress,
        on_lost: Callable[[str], None],
        on_work: Callable[["UcxEndpoint"], None],
        now_s: Callable[[], float],
    ) -> None:
        self._worker = worker
        self._library = worker().library
        self._on_lost = on_lost
        self._on_work = on_work
        self._now_s = now_s
        self._jobs: deque[Job] = deque()
        self._num_bytes = 0
        self._failure = ""
        self._closing: Any = None
        self._is_close_asked = False
        self._is_closed = False
        self._is_told = False
        self.settled_s = now_s()
        """When something last went on here; read by other threads."""
        self.lanes: list[UcxResource] = []
        """What it uses, known once something has moved."""
        ffi = self._library.ffi
        self._param = ffi.new("ucp_request_param_t *")
        self._callback = ffi.callback(
            "void(void *, ucp_ep_h, ucs_status_t)", lambda _arg, _ep, status: self._fail(status)
        )
        self._address = ffi.from_buffer(address.worker_address)
        self._packed_keys = {"table": address.table_rkey, "data": address.data_rkey}
        self._keys: dict[str, Any] = {}
        self._handle: Any = None

    @property
    def is_lost(self) -> bool:
        """Nothing new may be started here."""
        return bool(self._failure)

    @property
    def is_idle(self) -> bool:
        return not self._jobs and (not self._failure or self._is_closed)

    def start(self, job: Job) -> None:
        if self._handle is None and not self._failure:
            try:
                self._open()
            except UcxError as error:
                self.close(str(error))
        self._jobs.append(job)
        self._on_work(self)

    def stop(self, job: Job) -> None:
        """Nothing more of it is submitted; it ends when what was submitted has settled."""
        job.is_stopped = True

    def close(self, reason: str) -> None:
        """Tear the connection down; every job ends with `reason`."""
        if not self._failure:
            self._failure = reason
        self._on_work(self)
        if self._is_close_asked:
            return
        self._is_close_asked = True
        if self._handle is None:
            return
        self._param.op_attr_mask = abi.OP_FLAGS
        self._param.flags = abi.EP_CLOSE_FLAG_FORCE
        self._closing = self._library.lib.ucp_ep_close_nbx(self._handle, self._param)

    def advance(self) -> bool:
        """Take what has settled, submit what fits; whether anything was done."""
        has_worked = self._settle()
        if self._failure:
            self.close(self._failure)
            has_worked |= self._settle_close()
            if self._is_closed:
                self._end_failed_jobs()
            return has_worked
        for _ in range(len(self._jobs)):
            job = self._jobs[0]
            self._jobs.rotate(-1)
            has_worked |= self._advance_job(job)
            if self._failure:
                return True
        return has_worked

    def _open(self) -> None:
        ffi, lib = self._library.ffi, self._library.lib
        params = ffi.new("ucp_ep_params_t *")
        params.field_mask = (
            abi.EP_PARAM_REMOTE_ADDRESS | abi.EP_PARAM_ERR_HANDLING_MODE | abi.EP_PARAM_ERR_HANDLER
        )
        params.address = ffi.cast("ucp_address_t *", self._address)
        params.err_mode = abi.ERR_HANDLING_MODE_PEER
        params.err_handler.cb = self._callback
        made = ffi.new("ucp_ep_h *")
        check(
            self._library, lib.ucp_ep_create(self._worker().handle, params, made), "ucp_ep_create"
        )
        self._handle = made[0]
        for where, packed in self._packed_keys.items():
            key = ffi.new("ucp_rkey_h *")
            status = lib.ucp_ep_rkey_unpack(self._handle, ffi.from_buffer(packed), key)
            check(self._library, status, "ucp_ep_rkey_unpack")
            self._keys[where] = key[0]

    def _advance_job(self, job: Job) -> bool:
        """Submit one operation of it, or begin its next step, or end it."""
        if job.is_stopped:
            if job.in_flight:
                return False
            self._end(job, 0, "stopped")
            return True
        if not job.operations:
            if job.in_flight:
                return False
            result = job.begin_step()
            if result is not None:
                self._end(job, result, "")
            return True
        operation = job.operations[0]
        if isinstance(operation, Flush):
            job.operations.popleft()
            self._submit_flush(job)
            return True
        if self._num_bytes and self._num_bytes + operation.num_bytes > WINDOW_BYTES:
            return False
        job.operations.popleft()
        self._submit(job, operation)
        return True

    def _submit(self, job: Job, operation: Operation) -> None:
        lib, param = self._library.lib, self._param
        param.op_attr_mask = abi.OP_MEMH
        param.memh = operation.region.handle
        call = lib.ucp_get_nbx if operation.kind == "get" else lib.ucp_put_nbx
        request = call(
            self._handle,
            self._library.ffi.cast("void *", operation.address),
            operation.num_bytes,
            operation.remote_address,
            self._keys[operation.where],
            param,
        )
        self._take(job, request, operation.num_bytes)

    def _submit_flush(self, job: Job) -> None:
        self._param.op_attr_mask = 0
        self._take(job, self._library.lib.ucp_ep_flush_nbx(self._handle, self._param), 0)

    def _take(self, job: Job, request: Any, num_bytes: int) -> None:
        """A request is done at once, has failed at once, or is in flight."""
        status = self._status(request)
        if status == abi.UCS_INPROGRESS:
            job.in_flight.append((request, num_bytes))
            self._num_bytes += num_bytes
        elif status != abi.UCS_OK:
            self._fail(status)
        else:
            self.settled_s = self._now_s()

    def _settle(self) -> bool:
        lib = self._library.lib
        has_worked = False
        for job in self._jobs:
            while job.in_flight:
                request, num_bytes = job.in_flight[0]
                status = int(lib.ucp_request_check_status(request))
                if status == abi.UCS_INPROGRESS:
                    break
                lib.ucp_request_free(request)
                job.in_flight.popleft()
                self._num_bytes -= num_bytes
                self.settled_s = self._now_s()
                has_worked = True
                if status != abi.UCS_OK:
                    self._fail(status)
        return has_worked

    def _settle_close(self) -> bool:
        """Closed when UCX says so and no request is left."""
        if self._is_closed:
            return False
        lib = self._library.lib
        if self._closing is not None:
            if self._status(self._closing) == abi.UCS_INPROGRESS:
                if lib.ucp_request_check_status(self._closing) == abi.UCS_INPROGRESS:
                    return False
                lib.ucp_request_free(self._closing)
            self._closing = None
        if any(job.in_flight for job in self._jobs):
            return False
        for key in self._keys.values():
            lib.ucp_rkey_destroy(key)
        self._keys.clear()
        self._is_closed = True
        return True

    def _end_failed_jobs(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            self._end(job, 0, "stopped" if job.is_stopped else self._failure)
        if not self._is_told:
            self._is_told = True
            self._on_lost(self._failure)

    def _end(self, job: Job, result: int, problem: str) -> None:
        self._jobs.remove(job)
        job.steps.close()
        if not problem and not self.lanes:
            self.lanes = self._read_lanes()
        job.on_end(result, problem)

    def _fail(self, status: int) -> None:
        """Also called by UCX itself, in the middle of a progress: only noted here."""
        if not self._failure:
            self._failure = self._library.status_text(status)
            self._on_work(self)

    def _status(self, request: Any) -> int:
        """Of what a call with `nbx` returned: OK, an error, or in progress."""
        number = int(self._library.ffi.cast("intptr_t", request))
        return number if abi.LAST_ERROR <= number <= abi.UCS_OK else abi.UCS_INPROGRESS

    def _read_lanes(self) -> list[UcxResource]:
        ffi, lib = self._library.ffi, self._library.lib
        entries = ffi.new("ucp_transport_entry_t[16]")
        attributes = ffi.new("ucp_ep_attr_t *")
        attributes.field_mask = abi.EP_ATTR_TRANSPORTS
        attributes.transports.entries = entries
        attributes.transports.num_entries = len(entries)
        attributes.transports.entry_size = ffi.sizeof("ucp_transport_entry_t")
        check(self._library, lib.ucp_ep_query(self._handle, attributes), "ucp_ep_query")
        return [
            UcxResource(
                ffi.string(entry.transport_name).decode(), ffi.string(entry.device_name).decode()
            )
            for entry in entries[0 : attributes.transports.num_entries]
        ]
