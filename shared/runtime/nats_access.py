"""How a process shows itself to NATS: user, password, TLS, and where its answers go."""

from dataclasses import dataclass, field
from typing import Any

from shared.messages import subjects
from shared.runtime.tls import TlsFiles

OPERATOR_INBOX = "_INBOX"


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """Without anything: a server that lets everybody in, or a URL that says user and password."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsFiles | None = None
    service: str | None = None
    """Answers come to an inbox that only this service may listen to."""

    def options(self) -> dict[str, Any]:
        """For nats-py's `connect`. Raises ServiceError for TLS files that cannot be used."""
        inbox = OPERATOR_INBOX if self.service is None else subjects.inbox(self.service)
        options: dict[str, Any] = {"inbox_prefix": inbox}
        if self.user is not None:
            options |= {"user": self.user, "password": self.password or ""}
        if self.tls is not None:
            options["tls"] = self.tls.client_context("MOONPOOL_NATS_CA")
        return options
