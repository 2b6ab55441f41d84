"""The base of every message and its two encodings: msgpack, and JSON for people.

A payload that starts with `{` is JSON and is answered in JSON; anything else is msgpack. Bytes
fields are base64 in JSON.
"""

from typing import Any, Literal, TypeVar

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError

VERSION = 1
M = TypeVar("M", bound="Message")


class Message(BaseModel):
    """One message on the wire. Unknown fields are ignored, unknown versions are refused."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64"
    )
    v: Literal[1] = 1


class Part(BaseModel):
    """A value inside messages."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64"
    )


class MessageError(ValueError):
    """A payload that is not the message it should be; names the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def is_json(data: bytes) -> bool:
    return data[:1] == b"{"


def encode(message: Message, *, as_json: bool = False) -> bytes:
    """Bytes of a message; never changes it."""
    if as_json:
        return message.model_dump_json().encode()
    packed: bytes = msgpack.packb(message.model_dump())
    return packed


def decode(data: bytes, message_type: type[M]) -> M:
    """The message in `data`; raises MessageError that names the first bad field."""
    try:
        if is_json(data):
            return message_type.model_validate_json(data)
        fields: Any = msgpack.unpackb(data) if data else {}
        if not isinstance(fields, dict):
            raise MessageError("payload", f"must be a map, is a {type(fields).__name__}")
        return message_type.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "payload"
        raise MessageError(field, first["msg"]) from None
    except MessageError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise MessageError("payload", f"is neither msgpack nor JSON: {error}") from None
