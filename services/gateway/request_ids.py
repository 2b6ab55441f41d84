"""Ids of requests: the client's own, echoed; and one that is unique and safe in a subject."""

import re
import secrets
from dataclasses import dataclass

from services.gateway.errors import bad_request

MAX_CLIENT_ID_CHARS = 256
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class RequestIds:
    client_id: str
    """Echoed as X-Request-Id."""
    request_id: str
    """Names the request inside the cluster. A client may send one id twice: this one differs."""

    @property
    def trace_name(self) -> str:
        """The client's id as a subject token, so that it can subscribe before it asks."""
        return _as_token(self.client_id)


def make_ids(header: str | None) -> RequestIds:
    """Ids for a request with this X-Request-Id; raises ApiError 400 for one that is no id."""
    if header is None:
        made = f"req-{secrets.token_hex(10)}"
        return RequestIds(made, made)
    if len(header) > MAX_CLIENT_ID_CHARS or not _PRINTABLE.fullmatch(header):
        raise bad_request(
            "X-Request-Id",
            f"Invalid 'X-Request-Id': must be 1 to {MAX_CLIENT_ID_CHARS} visible ASCII characters",
        )
    return RequestIds(header, f"{_as_token(header)[:80]}-{secrets.token_hex(6)}")


def _as_token(text: str) -> str:
    return _UNSAFE.sub("_", text)[:128]
