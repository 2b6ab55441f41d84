"""The block keys of a prompt that a command is given: as text, tokens or keys, made as the gateway
makes them."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from scripts.cli.output import CommandError
from services.gateway.namespaces import namespace_of
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.text_model import load_text_model
from shared.kv.block_keys import chain_keys, num_keys, seed_of
from shared.kv.ids import KEY_BYTES
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import ModelInfo, ModelsReply
from shared.runtime.bus import Bus

TIMEOUT_S = 2.0
TextArgument = Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Text of a prompt.")]
ChatOption = Annotated[bool, typer.Option("--chat", help="The text is one user message of a chat.")]
TokensOption = Annotated[
    str | None, typer.Option(help="Token ids of the prompt instead, such as 5,17,3.")
]
KeysOption = Annotated[
    str | None,
    typer.Option(help="Keys of its blocks instead, in hex, from the first on: `keys` of lookup."),
]
ModelOption = Annotated[str | None, typer.Option(help="Of several that are served.")]
SaltOption = Annotated[
    str | None, typer.Option(help="`cache_salt` of the requests that are meant.")
]
TenantOption = Annotated[
    str, typer.Option(help="Tenant whose blocks are meant, where tenants have their own.")
]


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """What the options say; exactly one of text, tokens and keys."""

    text: str | None
    tokens: str | None
    keys: str | None
    is_chat: bool = False
    model: str | None = None
    salt: str | None = None
    tenant: str = ""

    def __post_init__(self) -> None:
        given = [self.text, self.tokens, self.keys]
        if sum(one is not None for one in given) != 1:
            raise CommandError(
                "which prompt?", hint="give its text, --tokens or --keys, one of them"
            )
        if self.is_chat and self.text is None:
            raise CommandError("--chat goes with a text", hint="leave --chat away")
        if self.tokens is not None:
            packed_tokens(self.tokens)
        if self.keys is not None:
            packed_keys(self.keys)
            if self.salt is not None or self.tenant:
                raise CommandError(
                    "--salt and --tenant are part of --keys already", hint="leave them away"
                )


@dataclass(frozen=True, slots=True)
class PromptChain:
    model: str
    root: bytes
    keys: bytes
    """Of its full blocks."""
    num_tokens: int
    block_tokens: int

    @property
    def num_blocks(self) -> int:
        return len(self.keys) // KEY_BYTES

    def need_blocks(self) -> "PromptChain":
        """Itself; CommandError when there is nothing that could be cached."""
        if not self.num_blocks:
            raise CommandError(
                f"the prompt has {self.num_tokens} tokens and no full block of "
                f"{self.block_tokens}: nothing of it is ever cached",
                hint="give a longer one",
            )
        return self


def packed_tokens(text: str) -> bytes:
    """Token ids between commas or blanks, as int32."""
    try:
        ids = [int(one) for one in text.replace(",", " ").split()]
        return np.asarray(ids, dtype="<i4").tobytes()
    except (ValueError, OverflowError):
        raise CommandError(
            f"--tokens {text[:40]}: these are no token ids", hint="write them as 5,17,3"
        ) from None


def packed_keys(text: str) -> bytes:
    """Keys in hex, between commas or blanks or one after the other."""
    try:
        keys = bytes.fromhex(text.replace(",", " "))
        num_keys(keys)
    except ValueError:
        keys = b""
    if not keys:
        raise CommandError(
            f"--keys {text[:40]}: keys have {2 * KEY_BYTES} hex digits each",
            hint="`moonpool index lookup --json` prints those of a prompt",
        )
    return keys


async def chain_of(bus: Bus, given: GivenPrompt) -> PromptChain:
    """Raises CommandError."""
    served = await served_model(bus, given.model)
    if given.keys is not None:
        keys = packed_keys(given.keys)
        num_tokens = num_keys(keys) * served.block_tokens
        return PromptChain(served.name, served.root, keys, num_tokens, served.block_tokens)
    packed = _tokens_of(given, served)
    seed = seed_of(served.root, namespace_of(given.tenant, given.salt))
    keys = chain_keys(seed, packed, served.block_tokens)
    return PromptChain(served.name, served.root, keys, len(packed) // 4, served.block_tokens)


def _tokens_of(given: GivenPrompt, served: ModelInfo) -> bytes:
    if given.tokens is not None:
        return packed_tokens(given.tokens)
    assert given.text is not None, "one of them is given"
    try:
        text_model = load_text_model(served.name)
    except CheckpointError as error:
        raise CommandError(f"{served.name}: {error}", hint="give --tokens or --keys") from None
    text = given.text
    if given.is_chat:
        text = text_model.chat_template.render([{"role": "user", "content": text}])
    ids = text_model.tokenizer.encode(text, add_special_tokens=not given.is_chat)
    return np.asarray(ids, dtype="<i4").tobytes()


async def served_model(bus: Bus, name: str | None) -> ModelInfo:
    """The one of this name, or the only one. Raises CommandError."""
    reply = await bus.request(subjects.CONDUCTOR_MODELS, Empty(), ModelsReply, timeout_s=TIMEOUT_S)
    names = [one.name for one in reply.models]
    if name is None and len(names) == 1:
        return reply.models[0]
    found = next((one for one in reply.models if one.name == name), None)
    if found is None:
        if not names:
            raise CommandError("no model is served", hint="`moonpool status` shows what runs")
        problem = f"{name} is not served" if name else "several models are served"
        raise CommandError(problem, hint=f"--model with one of {', '.join(names)}")
    return found
