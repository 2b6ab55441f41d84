"""HTTP of the dashboard: pages for all, data for those who may see it."""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.gateway.answer_response import unless_client_leaves
from services.gateway.dashboard.feed import Feed
from services.gateway.dashboard.pages import HEADERS, pages
from services.gateway.dashboard.viewer import Viewer
from services.gateway.errors import ApiError
from services.gateway.http_protocol import abort_connection
from services.gateway.request_reader import RequestReader

SEND_TIMEOUT_S = 10.0
"""Of one event; who takes longer is dropped."""


class DashboardApi:
    def __init__(self, feed: Feed, reader: RequestReader) -> None:
        self._feed = feed
        self._reader = reader

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/dashboard", self.to_folder, methods=["GET"]),
            Route("/dashboard/events", self.events, methods=["GET"]),
            Route("/dashboard/requests/{key}", self.detail, methods=["GET"]),
            Route("/dashboard/", self.page, methods=["GET"]),
            Route("/dashboard/{name}", self.page, methods=["GET"]),
        ]

    async def to_folder(self, _: Request) -> Response:
        return RedirectResponse("dashboard/", headers=HEADERS)

    async def page(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        page = pages().get(name)
        if page is None:
            raise ApiError(404, f"The dashboard has no file '{name}'.", code="not_found")
        headers = {**HEADERS, "etag": page.etag}
        if request.headers.get("if-none-match") == page.etag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, media_type=page.media_type, headers=headers)

    async def events(self, request: Request) -> Response:
        """The live feed: a snapshot, then what changed, about once a second."""
        self._check(request)
        return FeedResponse(self._feed, self._feed.join())

    async def detail(self, request: Request) -> Response:
        """One request with its decisions and its whole bill."""
        self._check(request)
        found = self._feed.detail(request.path_params["key"])
        if found is None:
            message = "This request is not among the last ones any more; load the page again."
            raise ApiError(404, message, code="request_not_found")
        return JSONResponse(found, headers=HEADERS)

    def _check(self, request: Request) -> None:
        """Where there are keys the data of all tenants is the operator's."""
        caller = self._reader.caller(request)
        if not self._reader.callers.is_open:
            self._reader.callers.check_admin(caller, "dashboard")


class FeedResponse(Response):
    """Owns one viewer from here to its end."""

    def __init__(self, feed: Feed, viewer: Viewer) -> None:
        self._feed = feed
        self._viewer = viewer
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_whole = False
        try:
            with contextlib.suppress(TimeoutError):
                await unless_client_leaves(receive, self._write(send))
                is_whole = not self._viewer.was_slow
        finally:
            self._feed.leave(self._viewer)
            if not is_whole:
                abort_connection(scope)
                await asyncio.sleep(0)  # the server sees that it is cut before we return

    async def _write(self, send: Send) -> None:
        headers = {**HEADERS, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send({"type": "http.response.start", "status": 200, "headers": raw})
        while (event := await self._viewer.next()) is not None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": event, "more_body": True})
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
