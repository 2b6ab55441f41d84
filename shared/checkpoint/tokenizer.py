"""Text to token ids and back. Thread safe; never templates a chat."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders

from shared.checkpoint.byte_level import token_bytes
from shared.checkpoint.byte_tokenizer import BYTE_EOS_ID, build_byte_tokenizer
from shared.checkpoint.dummy import dummy_preset
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.gguf_file import read_gguf
from shared.checkpoint.gguf_tokenizer import build_gguf_tokenizer
from shared.checkpoint.locate import ModelSource
from shared.checkpoint.model_config import load_model_config

_GGUF_FINGERPRINT_KEYS = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id")


class TextTokenizer:
    """The tokenizer of a model; the wrapped one is not changed after construction, so any
    number of threads may use it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        fingerprint: str,
        eos_token_ids: tuple[int, ...],
        bos_token_id: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._bos_token_id = bos_token_id
        self.fingerprint = fingerprint
        self.eos_token_ids = eos_token_ids
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.is_byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )

    @property
    def bos_token(self) -> str | None:
        return None if self._bos_token_id is None else self.token(self._bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self.token(self.eos_token_ids[0]) if self.eos_token_ids else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """A chat template writes its own special tokens; a plain prompt wants those that the
        model's tokenizer puts around a text, if any.

        Raises ValueError for text that no UTF-8 can hold (JSON may carry half a surrogate pair).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text: character {error.start} is half of a surrogate pair"
            ) from error
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are not shown."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None for an id outside of it."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def alone(self, token_id: int) -> bytes:
        """The text of one token by itself, a special one's name too; not always whole UTF-8."""
        token = self.token(token_id)
        if token is None:
            return b""
        if token_id in self._special_ids:
            return token.encode("utf-8")
        if self.is_byte_level:
            return token_bytes(token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])  # a byte of a character without a token
        return token.replace("\u2581", " ").encode("utf-8")

    def shown_alone(self, token_id: int) -> bytes:
        """What a token adds to the text by itself; nothing for a special one."""
        return b"" if token_id in self._special_ids else self.alone(token_id)

    def shown_bytes(self, token_id: int) -> bytes:
        """What a byte-level token adds to the text; nothing for a special or unknown one."""
        token = self.token(token_id)
        if token is None or token_id in self._special_ids:
            return b""
        return token_bytes(token)


def load_tokenizer(source: ModelSource) -> TextTokenizer:
    fingerprint = tokenizer_fingerprint(source)
    match source.kind:
        case "dummy":
            return TextTokenizer(
                build_byte_tokenizer(dummy_preset(source.preset or "").vocab_size),
                fingerprint=fingerprint,
                eos_token_ids=(BYTE_EOS_ID,),
            )
        case "gguf":
            file = read_gguf(source.file_path)
            bos = file.metadata.get("tokenizer.ggml.bos_token_id")
            return TextTokenizer(
                build_gguf_tokenizer(file),
                fingerprint=fingerprint,
                eos_token_ids=(int(file.required("tokenizer.ggml.eos_token_id")),),
                bos_token_id=None if bos is None else int(bos),
            )
        case "hf":
            return TextTokenizer(
                _read_hf(source.file_path / "tokenizer.json"),
                fingerprint=fingerprint,
                eos_token_ids=load_model_config(source).eos_token_ids,
            )


def tokenizer_fingerprint(source: ModelSource) -> str:
    """Equal where equal text gives equal tokens; found without building the tokenizer."""
    match source.kind:
        case "dummy":
            return _digest(f"byte-level {dummy_preset(source.preset or '').vocab_size}".encode())
        case "gguf":
            metadata = read_gguf(source.file_path).metadata
            described = [metadata.get(f"tokenizer.ggml.{key}") for key in _GGUF_FINGERPRINT_KEYS]
            return _digest(json.dumps(described, separators=(",", ":")).encode())
        case "hf":
            return _digest((source.file_path / "tokenizer.json").read_bytes())


def _read_hf(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise CheckpointError(f"{path}: not a tokenizer ({error})") from error
    # A saved tokenizer may cut or pad; a prompt must reach the model as it is.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]
