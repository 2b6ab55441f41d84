"""The ASGI app: health questions, bills, request ids and errors in OpenAI's form."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.answer_response import error_response
from services.gateway.bills import Bills
from services.gateway.direct_routes import HAS_BEGUN, DirectRoutes
from services.gateway.errors import ApiError
from services.gateway.request_ids import make_ids
from services.gateway.request_metrics import RequestMetrics
from services.gateway.request_reader import RequestReader

DIRECT = ("/v1/chat/completions", "/v1/completions")
NO_ROUTE = "other"
NO_CODE = "invalid_request"
"""Of an error that OpenAI's API gives no code."""


class HealthApi:
    """Three different questions. `is_connected`: to NATS; `missing`: what keeps us from serving."""

    def __init__(
        self,
        *,
        is_connected: Callable[[], bool],
        missing: Callable[[], str],
        bills: Bills,
        reader: RequestReader,
    ) -> None:
        self._is_connected = is_connected
        self._missing = missing
        self._bills = bills
        self._reader = reader

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/live", self.live, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            # A client's id may have slashes.
            Route("/v1/bills/{request_id:path}", self.bill, methods=["GET"]),
        ]

    async def live(self, _: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def health(self, _: Request) -> Response:
        """The process and its connection; a cluster that still loads is healthy."""
        if self._is_connected():
            return JSONResponse({"status": "healthy"})
        raise ApiError(503, "Not connected to NATS.", code="disconnected")

    async def ready(self, _: Request) -> Response:
        missing = self._missing()
        if not missing:
            return JSONResponse({"status": "ready"})
        raise ApiError(503, f"Not ready: {missing}.", code="not_ready")

    async def bill(self, request: Request) -> Response:
        """A tenant sees its own bills; the admin key shows all."""
        caller = self._reader.caller(request)
        request_id = request.path_params["request_id"]
        bill = self._bills.get_own(request_id, caller.tenant.name)
        if bill is None and caller.is_admin:
            bill = self._bills.get(request_id)
        if bill is None:
            message = f"No bill of '{request_id}' here: not finished, too old, or another gateway's"
            raise ApiError(404, message, param="request_id", code="bill_not_found")
        return JSONResponse(bill.model_dump(mode="json", exclude={"v"}))


class WithRequestId:
    """Gives every request its ids and echoes the client's; refuses an id that is none.

    `on_response` is told the route and the status of each response.
    """

    def __init__(
        self, app: ASGIApp, routes: list[Route], on_response: Callable[[str, int], None]
    ) -> None:
        self._app = app
        self._paths = {route.endpoint: route.path_format for route in routes}
        self._on_response = on_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            ids = make_ids(Headers(scope=scope).get("x-request-id"))
        except ApiError as error:
            self._on_response(NO_ROUTE, error.status)
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["ids"] = ids

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["state"][HAS_BEGUN] = True
                path = self._paths.get(scope["endpoint"]) if "endpoint" in scope else None
                self._on_response(path or NO_ROUTE, message["status"])
                headers = MutableHeaders(raw=list(message.get("headers", [])))
                headers["x-request-id"] = ids.client_id
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, send_with_id)


def build_app(routes: list[Route], metrics: RequestMetrics) -> ASGIApp:
    async def on_api_error(_: Request, error: Exception) -> Response:
        if not isinstance(error, ApiError):
            raise error
        metrics.refused(error.code or NO_CODE)
        return error_response(error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = error.detail if isinstance(error, HTTPException) else "internal error"
        what = f"{detail}: {request.method} {request.url.path}"
        response = error_response(ApiError(status, what, code="http_error"))
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    async def on_bug(_: Request, error: Exception) -> Response:
        del error  # logged by the server with its traceback
        return error_response(ApiError(500, "The gateway failed; see its log.", code="internal"))

    async def on_disconnect(_: Request, error: Exception) -> Response:
        del error  # left while sending its body: nobody reads this
        return Response(status_code=499)

    on_errors = {
        ApiError: on_api_error,
        HTTPException: on_http_error,
        ClientDisconnect: on_disconnect,
        Exception: on_bug,
    }
    rest = Starlette(routes=routes, exception_handlers=on_errors)
    direct = {route.path: route.endpoint for route in routes if route.path in DIRECT}
    return WithRequestId(DirectRoutes(rest, direct, on_errors), routes, metrics.responded)
