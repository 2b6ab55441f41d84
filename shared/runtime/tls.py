"""TLS from files: contexts for clients of NATS, Redis and HTTP. Owns no connection."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """`ca` verifies the server; certificate and key are shown to a server that asks for them."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def client_context(self, setting: str) -> ssl.SSLContext:
        """Raises ServiceError that names the setting when a file is not what it should be."""
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path)
            raise ServiceError(
                ErrorCode.BAD_REQUEST, f"{setting}: cannot use {files}: {error}"
            ) from error
        return context
