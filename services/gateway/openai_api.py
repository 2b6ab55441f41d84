"""The endpoints of OpenAI's API: chat completions, completions, models."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.gateway.answer_response import AnswerResponse
from services.gateway.callers import Caller
from services.gateway.cluster_view import ClusterView
from services.gateway.errors import ApiError
from services.gateway.generator import Generator
from services.gateway.openai_responses import (
    ChatFormat,
    CompletionFormat,
    ResponseBuilder,
    ResponseFormat,
    ResponseWishes,
)
from services.gateway.openai_schema import ChatBody, CompletionBody, parse_chat, parse_completion
from services.gateway.request_options import flag, options_of
from services.gateway.request_reader import RequestReader
from services.gateway.request_span import RequestSpan


class OpenAiApi:
    def __init__(self, generator: Generator, view: ClusterView, reader: RequestReader) -> None:
        self._generator = generator
        self._view = view
        self._reader = reader

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.one_model, methods=["GET"]),
        ]

    async def chat(self, request: Request) -> Response:
        caller = self._reader.caller(request)
        body = await self._reader.body(request, parse_chat)
        return await self._generate(request, caller, body, ChatFormat())

    async def completion(self, request: Request) -> Response:
        caller = self._reader.caller(request)
        body = await self._reader.body(request, parse_completion)
        return await self._generate(request, caller, body, CompletionFormat())

    async def models(self, request: Request) -> Response:
        self._reader.caller(request)
        return JSONResponse({"object": "list", "data": self._model_objects()})

    async def one_model(self, request: Request) -> Response:
        self._reader.caller(request)
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
        self,
        request: Request,
        caller: Caller,
        body: ChatBody | CompletionBody,
        response_format: ResponseFormat,
    ) -> Response:
        if body.admin_field is not None:
            self._reader.callers.check_admin(caller, body.admin_field)
        options = options_of(request, body, caller)
        shows_bill = flag(request, "x-moonpool-bill")
        span = RequestSpan(request, options)
        try:
            choices = await self._generator.start(body, span.options)
        except BaseException as error:
            span.refused(error)
            raise
        wishes = ResponseWishes(
            model=body.model,
            includes_usage=body.includes_usage,
            returns_token_ids=body.return_token_ids,
            shows_bill=shows_bill,
            tokenizer=self._generator.tokenizer,
        )
        builder = ResponseBuilder(choices, response_format, wishes)
        return AnswerResponse(self._generator, choices, builder, span, is_stream=body.stream)
