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


def run_in_vm(tests: str, seconds: int) -> str:
    """The output of pytest in the guest; fails when it does, skips when there can be no guest."""
    if rdma_devices():
        pytest.skip(f"there is a device: {', '.join(rdma_devices())}")
    tool = str(ROOT / "scripts" / "rdma-vm")
    check = subprocess.run([tool, "--check"], capture_output=True, text=True, check=False)
    if check.returncode == UNABLE:
        pytest.skip(check.stderr.strip())
    command = (
        f"cd {ROOT} && PYTHONPATH={ROOT} OMP_NUM_THREADS=1 {sys.executable} -P -m pytest -q -rA "
        f"--color=no -p no:cacheprovider -m rdma --timeout {seconds} --tb=short {tests}"
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


@pytest.mark.timeout(560)
def test_the_transport_keeps_its_contract_over_rdma() -> None:
    output = run_in_vm(TRANSPORT, 480)
    assert "test_rdma_peers.py::test_the_bytes_went_over_rdma[rc]" in output
    assert "SKIPPED" not in output


@pytest.mark.timeout(960)
def test_a_request_is_served_over_rdma() -> None:
    output = run_in_vm(REQUEST, 900)
    assert "PASSED" in output
    assert "SKIPPED" not in output
