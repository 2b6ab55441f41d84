"""The time of day of chosen processes, which a test makes jump; their monotonic clock goes on."""

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class JumpingClock:
    environment: dict[str, str]
    """Of a process that shall have this time of day."""
    _offset: Path

    def jump(self, offset_s: int) -> None:
        """At once so far from the real time, in all of these processes."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("q", offset_s))


def jumping_clock(folder: Path) -> JumpingClock:
    """Skips where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    library, offset = folder / "jumping_clock.so", folder / "offset"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True
    )
    offset.write_bytes(struct.pack("q", 0))
    return JumpingClock({"LD_PRELOAD": str(library), "TEST_CLOCK": str(offset)}, offset)
