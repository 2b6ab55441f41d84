"""From the bytes of an HTTP body to a checked body, or to the 400 that names its bad field."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from services.gateway.errors import ApiError, bad_request
from services.gateway.openai_defaults import without_defaults

Body = TypeVar("Body", bound=BaseModel)


def fields_of(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`; raises ApiError 400."""
    try:
        fields: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(None, f"The body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise bad_request(None, "The body must be a JSON object.")
    for name, value in fields.items():
        if not _is_whole(value):
            problem = f"Invalid '{name}': has half of a surrogate pair, which no UTF-8 can hold"
            raise bad_request(name, problem, code="invalid_value")
    return fields


def _is_whole(value: Any) -> bool:
    """JSON may carry half a surrogate pair; nothing behind the gateway could be told of it."""
    match value:
        case str():
            return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
        case list():
            return all(map(_is_whole, value))
        case dict():
            return all(_is_whole(key) and _is_whole(one) for key, one in value.items())
    return True


def parse_fields(
    fields: dict[str, Any], body_type: type[Body], defaults: dict[str, tuple[Any, ...]]
) -> Body:
    """The body; `defaults` are fields that may only have values that mean nothing."""
    try:
        return body_type.model_validate(without_defaults(fields, defaults))
    except ValidationError as error:
        raise _api_error(error) from None
    except ValueError as error:
        field, _, problem = str(error).partition(": ")
        raise bad_request(field, f"{field}: {problem}", code="unsupported_parameter") from None


def _api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = _dotted(first["loc"])
    problem = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        text = f"Unrecognized request argument supplied: {field}"
        return bad_request(field, text, code="unknown_parameter")
    if first["type"] == "value_error":
        # Validators of a whole object say themselves which of its fields is wrong.
        own, separator, rest = problem.partition(": ")
        if separator and own.isidentifier():
            field, problem = (f"{field}.{own}" if field else own), rest
    if first["type"] == "missing":
        return bad_request(field, f"Missing required parameter: '{field}'.", code="missing")
    return bad_request(field or None, f"Invalid '{field}': {problem}", code="invalid_value")


def _dotted(location: tuple[int | str, ...]) -> str:
    """`messages[0].content` from pydantic's path; the names of union branches are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "list"):
            text += f".{part}" if text else part
    return text
