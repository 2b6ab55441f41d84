"""W3C trace context: the client's `traceparent` continued, or a new one. Pure but for new ids."""

import re
import secrets

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def continued(header: str | None) -> str:
    """A traceparent with a span of our own; in the client's trace when the header is valid.

    The specification wants an invalid header to start a new trace, not to fail the request.
    """
    found = _FORM.fullmatch((header or "").strip())
    span = secrets.token_hex(8)
    if found is None:
        return f"00-{secrets.token_hex(16)}-{span}-00"
    version, trace, parent, flags, rest = found.groups()
    is_known = version != "ff" and not (version == "00" and rest)
    if not is_known or not int(trace, 16) or not int(parent, 16):
        return f"00-{secrets.token_hex(16)}-{span}-00"
    return f"00-{trace}-{span}-{int(flags, 16) & 1:02x}"


def trace_id(traceparent: str) -> str:
    return traceparent.split("-")[1] if traceparent else ""
