"""The HTTP bodies that ask for text. What is not understood is refused by name, never ignored."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from services.gateway.body_parsing import fields_of, parse_fields
from services.gateway.body_parts import (
    MAX_CHOICES,
    Biases,
    Flag,
    NumTop,
    Penalty,
    PlacementBody,
    Priority,
    Stops,
    StreamOptions,
    TargetMs,
    WithMessages,
    WithSalt,
)
from services.gateway.openai_defaults import CHAT_DEFAULTS, COMPLETION_DEFAULTS

MAX_PROMPTS = 64
COMPLETION_TOKENS = 16
"""OpenAI's default for plain completions."""


class GenerationBody(WithSalt):
    """What chat and plain completions share."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    logit_bias: Biases = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops = Field(default_factory=list)
    stream: Flag = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    cache: Literal["on", "off"] = "on"
    placement: PlacementBody | None = None
    policy: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    priority: Priority | None = None
    ttft_slo_ms: TargetMs | None = None
    tbt_slo_ms: TargetMs | None = None
    return_token_ids: Flag = False
    ignore_eos: Flag = False

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        return self

    @property
    def num_each(self) -> int:
        """Choices of a prompt."""
        return self.n or 1

    @property
    def num_choices(self) -> int:
        return self.num_each

    @property
    def num_top_logprobs(self) -> int | None:
        """None: no log probabilities are wanted."""
        raise NotImplementedError

    @property
    def answer_limit(self) -> int | None:
        """None: as many tokens as the deployment gives an answer."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Likely tokens beside the log probability of each of the prompt's; None: not wanted."""
        return None

    @property
    def biases(self) -> list[tuple[int, float]]:
        return sorted((int(token), bias) for token, bias in self.logit_bias.items())

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def admin_field(self) -> str | None:
        """The field that steers the cluster, if there is one."""
        if self.placement is not None:
            return "placement"
        return None if self.policy is None else "policy"


class ChatBody(GenerationBody, WithMessages):
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


def _prompts(value: Any) -> Any:
    """A list of prompts from one prompt or several."""
    is_several = isinstance(value, list) and value and isinstance(value[0], str | list)
    prompts = value if is_several else [value]
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts, got {len(prompts)}")
    for prompt in prompts:
        is_text = isinstance(prompt, str) and prompt
        is_ids = isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt)
        if not is_text and not is_ids:
            raise ValueError("must be a string or a list of token ids, or several, and not empty")
    return prompts


_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _several(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": MAX_PROMPTS}


Prompts = Annotated[
    list[str | list[int]],
    BeforeValidator(_prompts),
    WithJsonSchema({"anyOf": [_TEXT, _IDS, _several(_TEXT), _several(_IDS)]}),
]


class CompletionBody(GenerationBody):
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: Flag = False
    logprobs: NumTop | None = None

    @model_validator(mode="after")
    def _no_tokens_are_the_prompts(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError(
                "max_tokens: must be at least 1, or 0 with echo for the prompt alone; to count a "
                "prompt's tokens use /tokenize"
            )
        if self.max_tokens == 0 and self.placement is not None and self.placement.decode:
            raise ValueError("placement: decode has nothing to do when max_tokens is 0")
        return self

    @property
    def num_choices(self) -> int:
        return len(self.prompt) * self.num_each

    @property
    def answer_limit(self) -> int:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None


def parse_chat(raw: bytes) -> ChatBody:
    return parse_fields(fields_of(raw), ChatBody, CHAT_DEFAULTS)


def parse_completion(raw: bytes) -> CompletionBody:
    return parse_fields(fields_of(raw), CompletionBody, COMPLETION_DEFAULTS)


def parse_generation(raw: bytes) -> ChatBody | CompletionBody:
    """A chat when it has messages, else a completion: what /v1/explain takes."""
    fields = fields_of(raw)
    if "messages" in fields:
        return parse_fields(fields, ChatBody, CHAT_DEFAULTS)
    return parse_fields(fields, CompletionBody, COMPLETION_DEFAULTS)
