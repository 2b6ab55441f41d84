"""Rebuilds a byte-level BPE tokenizer from GGUF metadata."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_gguf_tokenizer(file: GgufFile) -> Tokenizer:
    kind = file.required("tokenizer.ggml.model")
    if kind != "gpt2":
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.model = {kind!r} is not supported, only 'gpt2' "
            "(byte-level BPE); give the Hugging Face folder of this model"
        )
    tokens: list[str] = file.required("tokenizer.ggml.tokens")
    merges = [_merge(file, line) for line in file.required("tokenizer.ggml.merges")]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(BPE(vocab, merges))
    except Exception as error:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.merges: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(file))
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = file.required("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(_added(tokens, types, _CONTROL))
    tokenizer.add_tokens(_added(tokens, types, _USER_DEFINED))
    if file.metadata.get("tokenizer.ggml.add_bos_token"):
        bos_id = int(file.required("tokenizer.ggml.bos_token_id"))
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def _merge(file: GgufFile, line: str) -> tuple[str, str]:
    left, space, right = line.partition(" ")
    if not space:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.merges: {line!r} is not a pair")
    return left, right


def _added(tokens: Sequence[str], types: Sequence[int], wanted: int) -> list[AddedToken]:
    return [
        AddedToken(token, special=wanted == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == wanted
    ]


def _pre_tokenizers(file: GgufFile) -> list[Any]:
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    match pre:
        case "smollm":
            return [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        case "qwen2":
            return [
                pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        case "gpt-2" | "default":
            return [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    raise CheckpointError(
        f"{file.path}: tokenizer.ggml.pre = {pre!r} is not supported; give the Hugging Face "
        "folder of this model"
    )
