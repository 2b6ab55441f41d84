"""Refuses messages that a worker cannot serve, with the field that is wrong."""

import numpy as np

from shared.kv import block_keys
from shared.kv.ids import KEY_BYTES
from shared.messages.common import ErrorCode, Sampling
from shared.messages.decode import DecodeRun
from shared.messages.prefill import PrefillRun, Reserve
from shared.runtime.errors import ServiceError
from shared.worker.parts import WorkerParts

TOKEN_BYTES = 4


def bad(field: str, problem: str) -> ServiceError:
    return ServiceError(ErrorCode.BAD_REQUEST, f"{field}: {problem}", field=field)


def check_chain(chain: bytes, num_tokens: int, block_tokens: int) -> None:
    if len(chain) % KEY_BYTES:
        raise bad("chain", f"{len(chain)} bytes are no whole keys of {KEY_BYTES}")
    full_blocks = num_tokens // block_tokens
    if len(chain) // KEY_BYTES > full_blocks:
        raise bad("chain", f"{len(chain) // KEY_BYTES} keys for {full_blocks} full blocks")


def check_reserve(message: Reserve, parts: WorkerParts) -> None:
    if message.num_tokens + min(message.max_tokens, 1) > parts.context_tokens:
        raise ServiceError(
            ErrorCode.CONTEXT_EXCEEDED,
            f"{message.num_tokens} prompt tokens leave no room in a context of "
            f"{parts.context_tokens}",
            field="num_tokens",
        )
    check_chain(message.chain, message.num_tokens, parts.grid.block_tokens)


def check_model(model: str, parts: WorkerParts) -> None:
    if model != parts.loaded.source.name:
        raise ServiceError(
            ErrorCode.UNKNOWN_MODEL,
            f"this instance serves {parts.loaded.source.name}, not {model}",
            field="model",
        )


def check_sampling(sampling: Sampling, parts: WorkerParts) -> None:
    vocab_size = parts.loaded.config.vocab_size
    for token, _ in sampling.logit_bias:
        if token >= vocab_size:
            raise bad(
                "sampling.logit_bias", f"token {token} is not in a vocabulary of {vocab_size}"
            )


def check_tokens(field: str, tokens: bytes, parts: WorkerParts) -> None:
    """A wrong id would fail a whole step, and every request in it."""
    if len(tokens) % TOKEN_BYTES:
        raise bad(field, f"{len(tokens)} bytes are no whole int32 values")
    ids = np.frombuffer(tokens, dtype="<u4")  # a negative one is larger than any vocabulary
    vocab_size = parts.loaded.config.vocab_size
    if int(ids.max(initial=0)) >= vocab_size:
        raise bad(field, f"an id is not in a vocabulary of {vocab_size}")


def check_prefill_run(message: PrefillRun, num_tokens: int, parts: WorkerParts) -> None:
    """Also that the chain belongs to the tokens: a wrong key would poison the cache."""
    check_model(message.model, parts)
    check_sampling(message.sampling, parts)
    if message.decode is None and message.sampling.max_tokens > 1:
        raise bad("decode", "is needed for an answer of more than one token")
    if message.decode is not None and not message.sampling.max_tokens:
        raise bad("decode", "has nothing to do for an answer without tokens")
    if len(message.tokens) != num_tokens * TOKEN_BYTES:
        raise bad(
            "tokens",
            f"{len(message.tokens)} bytes, but {num_tokens} int32 tokens were reserved",
        )
    check_tokens("tokens", message.tokens, parts)
    if message.chain:
        _check_keys(message, num_tokens, parts)


def _check_keys(message: PrefillRun, num_tokens: int, parts: WorkerParts) -> None:
    check_chain(message.chain, num_tokens, parts.grid.block_tokens)
    seed = block_keys.seed_of(parts.loaded.kv_format.root(), message.namespace)
    own = block_keys.chain_keys(seed, message.tokens, parts.grid.block_tokens)
    if message.chain != own[: len(message.chain)]:
        raise bad("chain", "these are not the keys of the tokens under this model's root")


def check_decode_run(message: DecodeRun, parts: WorkerParts) -> None:
    if not message.sampling.max_tokens:
        raise bad("sampling.max_tokens", "is 0: there is nothing to decode")
    check_model(message.model, parts)
    check_sampling(message.sampling, parts)
    check_tokens("given_tokens", message.given_tokens, parts)
    check_chain(message.chain, message.num_tokens, parts.grid.block_tokens)
    num_given = len(message.given_tokens) // TOKEN_BYTES
    if message.num_tokens + num_given > parts.context_tokens:
        raise ServiceError(
            ErrorCode.CONTEXT_EXCEEDED,
            f"{message.num_tokens} prompt tokens and {num_given} given ones exceed a context of "
            f"{parts.context_tokens}",
            field="given_tokens",
        )
