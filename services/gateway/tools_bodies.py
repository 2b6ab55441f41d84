"""The HTTP bodies of /tokenize and /detokenize, in vLLM's shapes."""

from typing import Annotated, Any

from pydantic import Field

from services.gateway.body_parsing import fields_of, parse_fields
from services.gateway.body_parts import Flag, Strict, WithMessages

Model = Annotated[str, Field(min_length=1)] | None
TokenIds = list[Annotated[int, Field(ge=0, lt=2**31)]]


class TokenizeTextBody(Strict):
    prompt: str
    model: Model = None
    add_special_tokens: bool = True
    return_token_strs: Flag = False


class TokenizeChatBody(WithMessages):
    """As the chat template writes it, with the start of an answer at its end."""

    model: Model = None
    return_token_strs: Flag = False


class DetokenizeBody(Strict):
    tokens: TokenIds
    model: Model = None


# Values of vLLM's other fields that mean what is done here anyway.
CHAT_TOKENIZE_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
    "add_special_tokens": (None, False),
}


def parse_tokenize(raw: bytes) -> TokenizeTextBody | TokenizeChatBody:
    fields = fields_of(raw)
    if "messages" in fields:
        return parse_fields(fields, TokenizeChatBody, CHAT_TOKENIZE_DEFAULTS)
    return parse_fields(fields, TokenizeTextBody, {})


def parse_detokenize(raw: bytes) -> DetokenizeBody:
    return parse_fields(fields_of(raw), DetokenizeBody, {})
