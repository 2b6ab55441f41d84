"""The HTTP bodies clients may send. What is not understood is refused by name, never ignored."""

import json
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from services.gateway.errors import ApiError, bad_request
from services.gateway.openai_defaults import (
    CHAT_DEFAULTS,
    COMPLETION_DEFAULTS,
    MESSAGE_DEFAULTS,
    without_defaults,
)

MAX_STOPS = 16
MAX_STOP_CHARS = 1_024
MAX_BIASES = 1_024
MAX_TOP_LOGPROBS = 20
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
NumTop = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
Body = TypeVar("Body", bound="GenerationBody")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StreamOptions(_Strict):
    include_usage: bool = False


class PlacementBody(_Strict):
    """Insists on instances by id, or on a policy by name; needs the admin key."""

    prefill: str | None = None
    decode: str | None = None
    policy: str | None = None


class GenerationBody(_Strict):
    """What chat and plain completions share."""

    model: Annotated[str, Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    logit_bias: dict[str, Bias] = {}
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: list[str] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    cache: Literal["on", "off"] = "on"
    placement: PlacementBody | None = None
    return_token_ids: bool = False
    ignore_eos: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_as_list(cls, value: Any) -> Any:
        stops = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise ValueError("must be a string or a list of strings")
        if len(stops) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings, got {len(stops)}")
        if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
            raise ValueError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
        return stops

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _biases_by_token(cls, value: Any) -> Any:
        if value is None:
            return {}
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise ValueError(f"at most {MAX_BIASES} tokens, got {len(value)}")
        if isinstance(value, dict):
            for key in value:
                if not (key.isascii() and key.isdecimal() and len(key) < 10):
                    raise ValueError(f"{key!r} is not a token id")
        return value

    @field_validator("stream", "return_token_ids", "ignore_eos", mode="before")
    @classmethod
    def _null_is_false(cls, value: Any) -> Any:
        return False if value is None else value

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        return self

    @property
    def num_top_logprobs(self) -> int | None:
        """None: no log probabilities are wanted."""
        raise NotImplementedError

    @property
    def biases(self) -> list[tuple[int, float]]:
        return sorted((int(token), bias) for token, bias in self.logit_bias.items())

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str

    @model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, value: Any) -> Any:
        return without_defaults(value, MESSAGE_DEFAULTS) if isinstance(value, dict) else value

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        for number, part in enumerate(value):
            if not isinstance(part, dict) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ValueError(f"part {number} is {kind!r}: only text parts are supported")
            if set(part) != {"type", "text"} or not isinstance(part["text"], str):
                raise ValueError(f"part {number} must have exactly type and text (a string)")
        return "".join(part["text"] for part in value)

    def as_template_input(self) -> dict[str, str]:
        """For the chat template; `developer` is the newer name of `system`."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content}


class ChatBody(GenerationBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ValueError("max_completion_tokens: differs from max_tokens; send one of them")
        return self

    @property
    def answer_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    prompt: str | list[int]
    logprobs: NumTop | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return value
        if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
            raise ValueError(f"got {len(value)} prompts: send one request for each")
        raise ValueError("must be a string, or a list of token ids, and not empty")

    @property
    def answer_limit(self) -> int:
        """OpenAI's default for plain completions is 16."""
        return self.max_tokens or 16

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs


def parse_chat(raw: bytes) -> ChatBody:
    return _parse(raw, ChatBody, CHAT_DEFAULTS)


def parse_completion(raw: bytes) -> CompletionBody:
    return _parse(raw, CompletionBody, COMPLETION_DEFAULTS)


def _parse(raw: bytes, body_type: type[Body], defaults: dict[str, tuple[Any, ...]]) -> Body:
    """The body, or an ApiError 400 that names the first bad field."""
    try:
        fields: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(None, f"The body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise bad_request(None, "The body must be a JSON object.")
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
