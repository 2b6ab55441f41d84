"""Memory that one layer gave back serves the next one."""

import subprocess
import sys

SCRIPT = """
import ctypes
import resource
import torch
from shared.engine.heap import keep_freed_memory

def layer():
    return [torch.empty(3 << 20, dtype=torch.uint8).fill_(1) for _ in range(4)]

for parameter in (-1, -3):  # as a process starts
    ctypes.CDLL(None).mallopt(parameter, 128 << 10)
keep_freed_memory()
torch.set_num_threads(1)
for _ in range(10):
    layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_pages_are_not_taken_anew_for_each_layer() -> None:
    # 50 times 12 MB would be 153,600 pages. In a process of its own, since it sets its heap.
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert int(done.stdout) < 15_000
