"""The gateway's own OpenAPI document, made from the bodies that it checks requests with."""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.gateway.openai_defaults import CHAT_DEFAULTS, COMPLETION_DEFAULTS, MESSAGE_DEFAULTS
from services.gateway.openai_schema import ChatBody, CompletionBody
from services.gateway.openapi_answers import ANSWERS, ERROR
from services.gateway.tools_bodies import (
    CHAT_TOKENIZE_DEFAULTS,
    DetokenizeBody,
    TokenizeChatBody,
    TokenizeTextBody,
)

JSON = "application/json"
EVENTS = "text/event-stream"
# The whole stream is a text; who reads it event by event sees an object for each.
_EVENT_STREAM: dict[str, Any] = {
    "description": "Server-sent events: `data` of each is a chunk as JSON, of the last [DONE]",
    "type": ["string", "object"],
    "properties": {"data": {"type": "string"}},
}
_BODIES: tuple[type[BaseModel], ...] = (
    ChatBody,
    CompletionBody,
    TokenizeTextBody,
    TokenizeChatBody,
    DetokenizeBody,
)
# Fields that may only have values that mean nothing, beside those that a body has itself.
_DEFAULTS: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "ChatBody": CHAT_DEFAULTS,
    "CompletionBody": COMPLETION_DEFAULTS,
    "ChatMessage": MESSAGE_DEFAULTS,
    "TokenizeChatBody": CHAT_TOKENIZE_DEFAULTS,
}
_STATUS_TEXT = {
    400: "Something in the request is wrong; `param` names it",
    401: "No valid API key",
    403: "The key does not allow this",
    404: "There is no such model, bill or path",
    408: "The body did not come in time",
    413: "The body or the prompt is too large",
    429: "Too much at once, or a target would be missed; see Retry-After",
    500: "The gateway failed",
    503: "The cluster cannot serve this now; see Retry-After",
    504: "The request did not finish in time",
}
_ASKING = (400, 401, 403, 404, 408, 413, 429, 500, 503, 504)
_LOOKING = (400, 401, 404, 500)


def openapi_document(model_names: list[str], *, needs_key: bool) -> dict[str, Any]:
    """OpenAPI 3.1; the models that are served are the only ones that a body may name."""
    _, definitions = models_json_schema(
        [(body, "validation") for body in _BODIES], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for name, defaults in _DEFAULTS.items():
        for field, values in defaults.items():
            schemas[name]["properties"].setdefault(field, {"enum": list(values)})
    for body in _BODIES:
        properties = schemas[body.__name__]["properties"]
        if "model" in properties:
            properties["model"] = {"type": "string", "enum": model_names}
    return {
        "openapi": "3.1.0",
        "info": {"title": "moonpool", "version": importlib.metadata.version("moonpool")},
        "paths": _paths(),
        "components": {
            "schemas": schemas | ANSWERS | {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}] if needs_key else [{}, {"key": []}],
    }


def _paths() -> dict[str, Any]:
    either = {"anyOf": [_ref("ChatBody"), _ref("CompletionBody")]}
    tokenize = {"anyOf": [_ref("TokenizeTextBody"), _ref("TokenizeChatBody")]}
    model_name = _parameter("name", "path")
    request_id = _parameter("request_id", "path")
    return {
        "/v1/chat/completions": _post("chat", _ref("ChatBody"), "ChatCompletion", EVENTS),
        "/v1/completions": _post("complete", _ref("CompletionBody"), "Completion", EVENTS),
        "/v1/explain": _post("explain", either, "Explanation"),
        "/tokenize": _post("tokenize", tokenize, "Tokens"),
        "/detokenize": _post("detokenize", _ref("DetokenizeBody"), "Text"),
        "/v1/models": _get("models", "Models"),
        "/v1/models/{name}": _get("model", "Model", model_name),
        "/v1/bills/{request_id}": _get("bill", "Bill", request_id),
        "/live": _get("live", "Status"),
        "/health": _get("health", "Status", statuses=(500, 503)),
        "/ready": _get("ready", "Status", statuses=(500, 503)),
    }


def _post(name: str, body: dict[str, Any], answer: str, *more_types: str) -> dict[str, Any]:
    streams = {kind: {"schema": _EVENT_STREAM} for kind in more_types}
    return {
        "post": {
            "operationId": name,
            "requestBody": {"required": True, "content": {JSON: {"schema": body}}},
            "responses": _responses(answer, _ASKING, streams),
        }
    }


def _get(
    name: str,
    answer: str,
    parameter: dict[str, Any] | None = None,
    *,
    statuses: tuple[int, ...] = _LOOKING,
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "responses": _responses(answer, statuses, {}),
    }
    if parameter is not None:
        operation["parameters"] = [parameter]
    return {"get": operation}


def _responses(answer: str, statuses: tuple[int, ...], more: dict[str, Any]) -> dict[str, Any]:
    found = {"description": "Done", "content": {JSON: {"schema": _ref(answer)}, **more}}
    errors = {
        str(status): {
            "description": _STATUS_TEXT[status],
            "content": {JSON: {"schema": _ref("Error")}},
        }
        for status in statuses
    }
    return {"200": found, **errors}


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": place, "required": True, "schema": schema}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
