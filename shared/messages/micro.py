"""What NATS' own service protocol (ADR-32) answers; any micro service does, ours or not."""

from shared.messages.envelope import Message


class MicroPing(Message):
    """Answer to a ping of all micro services."""

    name: str
    id: str
    """Of the registration, not of the process: see `name_of`."""
    version: str = ""
    metadata: dict[str, str] = {}

    @property
    def role(self) -> str:
        """Which of our services it is; empty when it is none."""
        return self.metadata.get("role", "")

    @property
    def name_of(self) -> str:
        """The process' id."""
        return self.metadata.get("id", self.id)

    @property
    def metrics_url(self) -> str:
        """Where it serves Prometheus; empty when nowhere."""
        return self.metadata.get("metrics", "")
