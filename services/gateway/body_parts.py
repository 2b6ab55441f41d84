"""Values inside the HTTP bodies, and what may stand for them as JSON. Owns no whole body."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from services.gateway.openai_defaults import MESSAGE_DEFAULTS, without_defaults

MAX_STOPS = 16
MAX_STOP_CHARS = 1_024
MAX_BIASES = 1_024
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 16
MAX_SALT_CHARS = 256
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
NumTop = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
Priority = Literal["low", "normal", "high"]
TargetMs = Annotated[float, Field(gt=0.0, le=3_600_000.0)]


class Strict(BaseModel):
    """What is not understood is refused by name, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _stop_list(value: Any) -> Any:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings, got {len(stops)}")
    if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
    return stops


def _biases(value: Any) -> Any:
    if value is None:
        return {}
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"at most {MAX_BIASES} tokens, got {len(value)}")
    if isinstance(value, dict):
        for key in value:
            if not (key.isascii() and key.isdecimal() and len(key) < 10):
                raise ValueError(f"{key!r} is not a token id")
    return value


def _null_is_false(value: Any) -> Any:
    return False if value is None else value


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
Stops = Annotated[
    list[str],
    BeforeValidator(_stop_list),
    WithJsonSchema(
        {
            "anyOf": [
                _STOP,
                {"type": "array", "items": _STOP, "maxItems": MAX_STOPS},
                {"type": "null"},
            ]
        }
    ),
]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
Biases = Annotated[
    dict[str, Bias],
    BeforeValidator(_biases),
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "maxProperties": MAX_BIASES,
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]
Flag = Annotated[
    bool, BeforeValidator(_null_is_false), WithJsonSchema({"type": ["boolean", "null"]})
]


class StreamOptions(Strict):
    include_usage: Flag = False


class PlacementBody(Strict):
    """Insists on instances by id; needs the admin key."""

    prefill: str | None = None
    decode: str | None = None


def _joined_parts(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    for number, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"part {number} is {kind!r}: only text parts are supported")
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError(f"part {number} must have exactly type and text (a string)")
    return "".join(part["text"] for part in value)


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
Content = Annotated[
    str,
    BeforeValidator(_joined_parts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}),
]


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, value: Any) -> Any:
        return without_defaults(value, MESSAGE_DEFAULTS) if isinstance(value, dict) else value

    def as_template_input(self) -> dict[str, str]:
        """For the chat template; `developer` is the newer name of `system`."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content}


class WithMessages(Strict):
    """A body that carries a chat."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]


class WithSalt(Strict):
    """A body whose cached KV may be kept apart."""

    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
