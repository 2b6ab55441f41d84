"""Text to token ids and back. Thread safe; never templates a chat."""

from collections.abc import Sequence

from shared.checkpoint.locate import ModelSource


class TextTokenizer:
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are not shown."""
        raise NotImplementedError(ids)


def load_tokenizer(source: ModelSource) -> TextTokenizer:
    raise NotImplementedError(source)
