"""Token ids of one stream to text, piece by piece. Never emits half a character."""

import codecs

from shared.checkpoint.tokenizer import TextTokenizer

_REPLACEMENT = "\ufffd"
# An UTF-8 character has four bytes at most: text that still ends in a replacement character
# after as many tokens is broken, not unfinished.
_MAX_HELD_TOKENS = 4


class IncrementalDetokenizer:
    """The pieces of push() and flush() together are tokenizer.decode() of all tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._decoder: _ByteDecoder | _WindowDecoder = (
            _ByteDecoder(tokenizer) if tokenizer.is_byte_level else _WindowDecoder(tokenizer)
        )

    def push(self, token_id: int) -> str:
        return self._decoder.push(token_id)

    def flush(self) -> str:
        return self._decoder.flush()


class _ByteDecoder:
    """Byte-level tokens are plain bytes, so UTF-8's own incremental decoder does it."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._tokenizer.shown_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Other decoders depend on the neighbours (spaces, byte fallback): decode a short window
    twice, without and with the new tokens, and emit what was added."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        added = self._added()
        if added.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD_TOKENS:
            return ""
        return self._emit(added)

    def flush(self) -> str:
        return self._emit(self._added()) if self._held else ""

    def _added(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._held)[len(before) :]

    def _emit(self, added: str) -> str:
        if added:
            self._context, self._held = self._held, []
        return added
