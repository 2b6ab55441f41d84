"""Which ways of UCX the tests of the rdma transport run over, and why one is skipped."""

from functools import cache
from typing import Any

import pytest

from shared.transport.ucx_context import UcxContext
from shared.transport.ucx_library import UcxUnavailable, load_ucx
from tests.support.servers import is_ci

OPTIONS = {"cma": "TLS=tcp,cma", "tcp": "TLS=tcp", "rc": "TLS=rc"}
LANES: list[Any] = ["cma", "tcp", pytest.param("rc", marks=pytest.mark.rdma)]


@cache
def library_problem() -> str:
    """Why there is no libucp; empty when there is."""
    try:
        load_ucx()
    except UcxUnavailable as error:
        return str(error)
    return ""


@cache
def rdma_devices() -> list[str]:
    if library_problem():
        return []
    context = UcxContext.open(load_ucx(), {})
    try:
        return sorted({each.device for each in context.resources() if each.is_rdma})
    finally:
        context.close()


def skip_without(lane: str) -> str:
    """The UCX options of a lane; skips the test where it cannot run."""
    if library_problem():
        if is_ci():
            raise AssertionError(library_problem())
        pytest.skip(library_problem())
    if lane == "rc" and not rdma_devices():
        pytest.skip("UCX sees no RDMA device; scripts/test --all rdma starts a machine with one")
    return OPTIONS[lane]
