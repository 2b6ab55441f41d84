"""Real verbs on a host without a NIC: the tests marked rdma, in a virtual machine with Soft-RoCE.

Where a device is there, those tests run directly and this one has nothing to add.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rdma_lanes import rdma_devices

ROOT = Path(__file__).resolve().parents[2]
TRANSPORT = "tests/contracts/test_rdma_transport.py tests/fault/transport/test_rdma_peers.py"
REQUEST = "tests/e2e/test_request_over_rdma.py"
UNABLE = 77

pytestmark = [pytest.mark.slow]


PATIENCE = 10
"""Times the deadlines of the tests: the guest is so much slower than a host."""


def run_in_vm(tests: str, seconds: int, compiled: Path) -> str:
    """The output of pytest in the guest; fails when it does, skips when there can be no guest."""
    if rdma_devices():
        pytest.skip(f"there is a device: {', '.join(rdma_devices())}")
    tool = str(ROOT / "scripts" / "rdma-vm")
    check = subprocess.run([tool, "--check"], capture_output=True, text=True, check=False)
    if check.returncode == UNABLE:
        pytest.skip(check.stderr.strip())
    compile_for_guest(tests, compiled)
    # Without a compiler on its path the guest builds no kernels: that would take minutes.
    command = (
        f"cd {ROOT} && PATH=/usr/sbin PYTHONPATH={ROOT} PYTHONPYCACHEPREFIX={compiled} "
        f"MOONPOOL_TEST_PATIENCE={PATIENCE} OMP_NUM_THREADS=1 {sys.executable} -P -m pytest -q -rA "
        f"--color=no -p no:cacheprovider -m rdma --timeout {seconds} --tb=short --durations=0 "
        f"{tests}"
    )
    done = subprocess.run(
        [tool, command],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 60,
        env={**os.environ, "RDMA_VM_SECONDS": str(seconds)},
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def compile_for_guest(tests: str, compiled: Path) -> None:
    """Run the same tests here over UCX's tcp: what they import is compiled in `compiled` then.

    Compiling torch's sources takes an emulated CPU several minutes.
    """
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(compiled),
        "PYTHONDONTWRITEBYTECODE": "",
        "MOONPOOL_TEST_PATIENCE": str(PATIENCE),
    }
    done = subprocess.run(
        [*command, "-k", "tcp", *tests.split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.timeout(2000)
def test_the_transport_keeps_its_contract_over_rdma(tmp_path: Path) -> None:
    output = run_in_vm(TRANSPORT, 1700, tmp_path)
    assert "test_rdma_peers.py::test_the_bytes_went_over_rdma[rc]" in output
    assert "SKIPPED" not in output


@pytest.mark.timeout(2600)
def test_a_request_is_served_over_rdma(tmp_path: Path) -> None:
    output = run_in_vm(REQUEST, 2400, tmp_path)
    assert "PASSED" in output
    assert "SKIPPED" not in output
