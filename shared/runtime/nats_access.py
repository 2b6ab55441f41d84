"""How a process shows itself to NATS: user, password, TLS, and where its answers go."""

from dataclasses import dataclass, field
from typing import Any

from shared.messages import subjects
from shared.messages.access import ADMIN
from shared.runtime.tls import TlsFiles

OPERATOR_INBOX = "_INBOX"


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """Without anything: a server that lets everybody in, or a URL that says user and password."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsFiles | None = None

    def options(self) -> dict[str, Any]:
        """For nats-py's `connect`. Raises ServiceError for TLS files that cannot be used."""
        # Answers come to an inbox that only this user may listen to.
        is_operator = self.user in (None, ADMIN)
        inbox = OPERATOR_INBOX if is_operator else subjects.inbox(str(self.user))
        options: dict[str, Any] = {"inbox_prefix": inbox}
        if self.user is not None:
            options |= {"user": self.user, "password": self.password or ""}
        if self.tls is not None:
            options["tls"] = self.tls.client_context("MOONPOOL_NATS_CA")
        return options
