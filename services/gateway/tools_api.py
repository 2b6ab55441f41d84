"""Endpoints beside OpenAI's: tokens of a text, text of tokens, and where a request would run."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.gateway.attempt_calls import refusal_of
from services.gateway.cluster_view import ClusterView
from services.gateway.errors import ApiError, targets_for_client
from services.gateway.generator import Generator
from services.gateway.job import Job
from services.gateway.openai_schema import parse_generation
from services.gateway.openapi import openapi_document
from services.gateway.prompts import PromptMaker
from services.gateway.request_options import options_of
from services.gateway.request_reader import RequestReader
from services.gateway.tools_bodies import TokenizeTextBody, parse_detokenize, parse_tokenize
from shared.kv.block_keys import num_keys
from shared.messages.bill import Times
from shared.messages.conductor import Candidate, Placement, PlaceReply
from shared.runtime.errors import ServiceError

BEFORE_DECODE = ("queue_s", "load_s", "compute_s", "overhead_s", "ttft_s")
IN_DECODE = ("handoff_s", "tbt_s", "tbt_scale")
"""Stages of a prediction; the others of `Times` are only measured."""


class ToolsApi:
    def __init__(
        self,
        generator: Generator,
        view: ClusterView,
        prompts: PromptMaker,
        reader: RequestReader,
    ) -> None:
        self._generator = generator
        self._view = view
        self._prompts = prompts
        self._reader = reader

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/explain", self.explain, methods=["POST"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        self._reader.caller(request)
        body = await self._reader.body(request, parse_tokenize)
        self._check_model(body.model)
        if isinstance(body, TokenizeTextBody):
            wants_special = body.add_special_tokens
            ids = await self._prompts.text_ids(body.prompt, add_special_tokens=wants_special)
        else:
            ids = await self._prompts.chat_ids(body.messages)
        model = self._view.model

        def make() -> Response:
            tokenizer = self._prompts.tokenizer
            return JSONResponse(
                {
                    "count": len(ids),
                    "max_model_len": None if model is None else model.context_tokens,
                    "tokens": ids,
                    "token_strs": [tokenizer.token(one) or "" for one in ids]
                    if body.return_token_strs
                    else None,
                }
            )

        # A body may have millions of tokens: to write them holds up others' for seconds.
        return await run_in_threadpool(make)

    async def detokenize(self, request: Request) -> Response:
        self._reader.caller(request)
        body = await self._reader.body(request, parse_detokenize)
        self._check_model(body.model)
        return JSONResponse({"prompt": await self._prompts.text_of(body.tokens, "tokens")})

    async def explain(self, request: Request) -> Response:
        """A body as for chat completions or completions; nothing runs."""
        caller = self._reader.caller(request)
        body = await self._reader.body(request, parse_generation)
        if body.admin_field is not None:
            self._reader.callers.check_admin(caller, body.admin_field)
        options = options_of(request, body, caller)
        try:
            job, reply = await self._generator.explain(body, options)
        except ServiceError as error:
            raise ApiError.from_info(error.info) from error
        return JSONResponse(explanation(job, reply))

    async def openapi(self, _: Request) -> Response:
        document = openapi_document(
            self._generator.model_names, needs_key=not self._reader.callers.is_open
        )
        return JSONResponse(document)

    def _check_model(self, name: str | None) -> None:
        if name is not None:
            self._generator.check_model_name(name)


def explanation(job: Job, reply: PlaceReply) -> dict[str, Any]:
    """Every candidate with its bill, the winner first, and why the others lost."""
    placement = reply.placement
    decode = None if placement is None else placement.decode
    losers = [_loser(loser) for loser in reply.losers]
    winner = [] if placement is None else [_winner(placement)]
    refusal = None
    if reply.refusal is not None:
        refusal = ApiError.from_info(refusal_of(reply)).body["error"]
    return {
        "object": "explanation",
        "model": job.model,
        "prompt_tokens": job.num_tokens,
        "prompt_blocks": num_keys(job.chain),
        "max_tokens": job.sampling.max_tokens,
        "policy": None if placement is None else placement.policy,
        "decode": None if decode is None else decode.id,
        "refusal": refusal,
        "targets": None if reply.targets is None else targets_for_client(reply.targets),
        "candidates": [*winner, *losers],
        "counts": reply.counts,
    }


def _winner(placement: Placement) -> dict[str, Any]:
    local, source = placement.local_blocks, placement.source
    # A source's blocks count from the root on, those that are here included.
    remote = 0 if source is None else max(0, source.num_blocks - local)
    has_decode = placement.decode is not None
    return _priced(placement, remote, has_decode=has_decode) | {"is_chosen": True, "reason": ""}


def _loser(loser: Candidate) -> dict[str, Any]:
    priced = _priced(loser, loser.remote_blocks, has_decode=False)
    return priced | {"is_chosen": False, "reason": loser.reason}


def _priced(one: Placement | Candidate, remote_blocks: int, *, has_decode: bool) -> dict[str, Any]:
    return {
        "prefill": one.prefill.id,
        "node": one.prefill.node,
        "local_blocks": one.local_blocks,
        "remote_blocks": remote_blocks,
        "local_tokens": one.local_tokens,
        "remote_tokens": one.remote_tokens,
        "predicted": _times(one.predicted, has_decode=has_decode),
        "cost": None if one.cost is None else round(one.cost, 6),
    }


def _times(times: Times, *, has_decode: bool) -> dict[str, float | None]:
    """What is predicted. Without a decode instance what comes after token 0 is null: it is not 0,
    nobody knows it."""
    before = {name: round(getattr(times, name), 6) for name in BEFORE_DECODE}
    after = {name: round(getattr(times, name), 6) if has_decode else None for name in IN_DECODE}
    return before | after
