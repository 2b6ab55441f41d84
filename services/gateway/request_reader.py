"""Reads what every endpoint needs of a request: its sender and its body, within the limits."""

from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from services.gateway.callers import Caller, Callers
from services.gateway.errors import ApiError

T = TypeVar("T")
LARGE_BODY_BYTES = 64 << 10


class RequestReader:
    def __init__(
        self, callers: Callers, *, max_body_bytes: int, check_open: Callable[[], None]
    ) -> None:
        self.callers = callers
        self._max_body_bytes = max_body_bytes
        self._check_open = check_open

    def caller(self, request: Request) -> Caller:
        """Raises ApiError 401 for a sender without a right."""
        return self.callers.identify(request.headers.get("authorization", ""))

    async def body(self, request: Request, parse: Callable[[bytes], T]) -> T:
        """The checked body of a sender with a right; raises ApiError."""
        raw = await self._read(request)
        # Parsing a large body takes long enough to hold up others' tokens.
        if len(raw) > LARGE_BODY_BYTES:
            return await run_in_threadpool(parse, raw)
        return parse(raw)

    async def _read(self, request: Request) -> bytes:
        """The body, as long as it is small enough and the gateway takes requests."""
        self._check_open()
        declared = request.headers.get("content-length", "0")
        too_large = ApiError(
            413, f"The body is larger than {self._max_body_bytes} bytes.", code="body_too_large"
        )
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise too_large
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._max_body_bytes:
                raise too_large
        return bytes(body)
