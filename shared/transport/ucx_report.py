"""What UCX finds on this machine, for `moonpool doctor` and for the choice of transports."""

import resource
from dataclasses import dataclass

from shared.transport.rdma_options import RdmaOptions
from shared.transport.ucx_context import UcxContext, UcxError, UcxResource
from shared.transport.ucx_library import UcxUnavailable, load_ucx, rdma_devices


@dataclass(frozen=True, slots=True)
class UcxReport:
    """`problem` says why the rdma transport cannot be used here; empty when it can."""

    problem: str
    version: str = ""
    path: str = ""
    source: str = ""
    resources: tuple[UcxResource, ...] = ()
    kernel_devices: tuple[str, ...] = ()
    max_locked_bytes: int | None = None
    """Memory that this process may pin for devices; None without a limit."""

    @property
    def line(self) -> str:
        """One line for people: what there is, else why not."""
        if not self.version:
            return self.problem
        lanes = ", ".join(f"{each.transport}/{each.device}" for each in self.resources)
        return f"{self.version} of {self.source} ({self.path}) sees {lanes or 'nothing'}"


def ucx_report(options: RdmaOptions) -> UcxReport:
    """Loads UCX and opens a context for it; takes about a second the first time."""
    devices, limit = tuple(rdma_devices()), _max_locked_bytes()
    try:
        library = load_ucx(options.library)
    except UcxUnavailable as error:
        return UcxReport(str(error), kernel_devices=devices, max_locked_bytes=limit)
    problem = ""
    resources: tuple[UcxResource, ...] = ()
    try:
        context = UcxContext.open(library, options.ucx_options)
    except UcxError as error:
        problem = str(error)
    else:
        resources = tuple(context.resources())
        context.close()
        if not options.says_transports and not any(each.is_rdma for each in resources):
            problem = _no_device(devices, resources)
    return UcxReport(
        problem, library.version_text, library.path, library.source, resources, devices, limit
    )


def check_device(options: RdmaOptions) -> None:
    """UcxUnavailable where there is nothing that rdma would be better with than tcp."""
    if not options.says_transports and not rdma_devices():
        raise UcxUnavailable(_no_device((), ()))


def _no_device(devices: tuple[str, ...], resources: tuple[UcxResource, ...]) -> str:
    if devices:
        names = ", ".join(sorted({each.transport for each in resources}))
        return (
            f"UCX uses none of the RDMA devices {', '.join(devices)} (it has {names}): is the link "
            "up, and is their provider (rdma-core, ibverbs-providers) installed?"
        )
    return (
        "there is no RDMA device (/sys/class/infiniband); in a container pass /dev/infiniband "
        "through. To use UCX without one name its transports: MOONPOOL_UCX_OPTIONS=TLS=tcp,cma"
    )


def _max_locked_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
