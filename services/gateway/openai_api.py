"""The endpoints of OpenAI's API: chat completions, completions, models."""

import hmac
from typing import Any

from pydantic import SecretStr
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.gateway.answer_response import AnswerResponse
from services.gateway.cluster_view import ClusterView
from services.gateway.errors import ApiError, bad_request
from services.gateway.generator import Generator, RequestOptions
from services.gateway.openai_responses import (
    ChatFormat,
    CompletionFormat,
    ResponseBuilder,
    ResponseFormat,
)
from services.gateway.openai_schema import ChatBody, CompletionBody, parse_chat, parse_completion
from shared.messages.common import CacheMode

LARGE_BODY_BYTES = 64 << 10


class OpenAiApi:
    def __init__(
        self,
        generator: Generator,
        view: ClusterView,
        *,
        admin_key: SecretStr | None,
        max_body_bytes: int,
    ) -> None:
        self._generator = generator
        self._view = view
        self._admin_key = admin_key
        self._max_body_bytes = max_body_bytes

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.one_model, methods=["GET"]),
        ]

    async def chat(self, request: Request) -> Response:
        raw = await self._read(request)
        # Parsing a large body takes long enough to hold up others' tokens.
        large = len(raw) > LARGE_BODY_BYTES
        body = await run_in_threadpool(parse_chat, raw) if large else parse_chat(raw)
        return await self._generate(request, body, ChatFormat())

    async def completion(self, request: Request) -> Response:
        raw = await self._read(request)
        large = len(raw) > LARGE_BODY_BYTES
        body = await run_in_threadpool(parse_completion, raw) if large else parse_completion(raw)
        return await self._generate(request, body, CompletionFormat())

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": self._model_objects()})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for found in self._model_objects():
            if found["id"] == name:
                return JSONResponse(found)
        message = f"The model '{name}' does not exist"
        raise ApiError(404, message, param="model", code="model_not_found")

    def _model_objects(self) -> list[dict[str, Any]]:
        model = self._view.model
        if model is None:
            return []
        return [
            {
                "id": model.name,
                "object": "model",
                "created": 0,
                "owned_by": "moonpool",
                "max_model_len": model.context_tokens,
            }
        ]

    async def _generate(
        self, request: Request, body: ChatBody | CompletionBody, response_format: ResponseFormat
    ) -> Response:
        if body.placement is not None:
            self._check_admin(request)
        options = RequestOptions(
            ids=request.state.ids,
            cache=_cache_header(request),
            is_traced=_flag(request, "x-moonpool-trace"),
        )
        shows_bill = _flag(request, "x-moonpool-bill")
        answer = await self._generator.start(body, options)
        builder = ResponseBuilder(
            answer,
            response_format,
            model=body.model,
            includes_usage=body.includes_usage,
            returns_token_ids=body.return_token_ids,
            shows_bill=shows_bill,
            tokenizer=self._generator.tokenizer,
        )
        return AnswerResponse(self._generator, answer, builder, is_stream=body.stream)

    async def _read(self, request: Request) -> bytes:
        """The body, as long as it is small enough and the gateway takes requests."""
        self._generator.check_open()
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

    def _check_admin(self, request: Request) -> None:
        """`placement` steers the cluster: it needs the admin key."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        key = self._admin_key.get_secret_value() if self._admin_key is not None else ""
        is_equal = hmac.compare_digest(given.strip().encode(), key.encode())
        if not key or scheme.lower() != "bearer" or not is_equal:
            raise ApiError(
                403,
                "'placement' needs the admin key: Authorization: Bearer <MOONPOOL_ADMIN_KEY>",
                param="placement",
                code="admin_key_required",
            )


def _flag(request: Request, header: str) -> bool:
    value = request.headers.get(header, "0")
    if value not in ("0", "1"):
        raise bad_request(header, f"Invalid '{header}': must be 0 or 1")
    return value == "1"


def _cache_header(request: Request) -> CacheMode | None:
    value = request.headers.get("x-moonpool-cache")
    match value:
        case None | "on" | "off":
            return value
    raise bad_request("x-moonpool-cache", "Invalid 'x-moonpool-cache': must be on or off")
