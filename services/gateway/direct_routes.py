"""The routes that answer with tokens, past the router and its layers: token 0 waits for those."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]
OnError = Callable[[Request, Exception], Awaitable[Response]]
HAS_BEGUN = "has_begun"
"""In the state of a request whose answer has begun."""


class DirectRoutes:
    """POST of exactly these paths; everything else is for `rest`.

    What a handler raises is answered as in `rest`: by the type of the exception, and by the entry
    of `Exception` before it goes on to the server, which logs it.
    """

    def __init__(
        self,
        rest: ASGIApp,
        handlers: Mapping[str, Handler],
        on_errors: Mapping[type[Exception], OnError],
    ) -> None:
        self._rest = rest
        self._handlers = handlers
        self._on_errors = on_errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        handler = self._handlers.get(scope["path"]) if is_post else None
        if handler is None:
            await self._rest(scope, receive, send)
            return
        scope["endpoint"] = handler
        request = Request(scope, receive)
        try:
            response = await handler(request)
            await response(scope, receive, send)
        except Exception as error:  # answered, and raised again when nobody foresaw it
            if scope["state"].get(HAS_BEGUN):
                raise
            known = self._on_errors.get(type(error))
            answer = await (known or self._on_errors[Exception])(request, error)
            await answer(scope, receive, send)
            if known is None:
                raise
