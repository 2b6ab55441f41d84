"""`GET /metrics` on the API's own port. With API keys it needs the admin key."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.gateway.request_reader import RequestReader
from shared.telemetry.meters import Meters


class MetricsApi:
    def __init__(self, meters: Meters, reader: RequestReader) -> None:
        self._meters = meters
        self._reader = reader

    @property
    def routes(self) -> list[Route]:
        return [Route("/metrics", self.metrics, methods=["GET"])]

    async def metrics(self, request: Request) -> Response:
        caller = self._reader.caller(request)
        if not self._reader.callers.is_open:
            self._reader.callers.check_admin(caller, "/metrics")
        body, content_type = self._meters.text(request.headers.get("accept", ""))
        # Not `media_type`: Starlette would put a charset after the one that is there.
        return Response(body, headers={"content-type": content_type})
