"""The file by which a process shows its container that it is well: renewed for as long as it is.

Whether it is fresh can be looked at without starting an interpreter, many times a minute.
"""

from pathlib import Path


class HealthFile:
    """`<service> <id>` in a file whose age tells how long ago the process was ready."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_told = False

    def tell(self, service: str, instance_id: str) -> None:
        """The process is ready now. Raises OSError."""
        if self.is_told and self._path.exists():
            self._path.touch()
            return
        self._path.write_text(f"{service} {instance_id}\n")
        self.is_told = True
