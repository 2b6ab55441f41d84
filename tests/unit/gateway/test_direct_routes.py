"""Routes past the router: whose they are, and that errors are answered as by the others."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.gateway.errors import ApiError
from services.gateway.http_app import DIRECT, build_app
from services.gateway.request_metrics import RequestMetrics

PATH = DIRECT[0]
BESIDE = "/beside"


class Breaks(Response):
    """Begins, then fails."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("planted")


async def handler(request: Request) -> Response:
    match (await request.body()).decode():
        case "refuse":
            raise ApiError(429, "full", code="overloaded", retry_after_s=2)
        case "fail":
            raise RuntimeError("planted")
        case "break":
            return Breaks()
        case body:
            return PlainTextResponse(f"{request.url.path} {body}")


async def answer(path: str, body: str, **more: Any) -> httpx.Response:
    routes = [Route(one, handler, methods=["POST"]) for one in (PATH, BESIDE)]
    app = build_app(routes, RequestMetrics())
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(more.pop("method", "POST"), path, content=body, **more)


@pytest.mark.parametrize(
    ("body", "method", "status"),
    [
        ("hello", "POST", 200),
        ("refuse", "POST", 429),
        ("fail", "POST", 500),
        ("hello", "GET", 405),
    ],
)
async def test_an_answer_is_the_same_as_by_the_router(body: str, method: str, status: int) -> None:
    ours = await answer(PATH, body, method=method)
    others = await answer(BESIDE, body, method=method)
    assert ours.status_code == others.status_code == status
    assert ours.text == others.text.replace(BESIDE, PATH)
    assert ours.headers.keys() == others.headers.keys()
    assert "x-request-id" in ours.headers


@pytest.mark.parametrize("path", [PATH, BESIDE])
async def test_a_bug_is_raised_for_the_server_to_log_whether_or_not_an_answer_has_begun(
    path: str,
) -> None:
    app = build_app([Route(path, handler, methods=["POST"])], RequestMetrics())
    for body in ("fail", "break"):
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            with pytest.raises(RuntimeError, match="planted"):
                await client.post(path, content=body)


async def test_a_path_that_only_begins_alike_is_not_ours() -> None:
    assert (await answer(f"{PATH}/more", "hello")).status_code == 404
