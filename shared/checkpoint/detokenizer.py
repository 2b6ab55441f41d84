"""Token ids of one stream to text, piece by piece. Never emits half a character."""

from shared.checkpoint.tokenizer import TextTokenizer


class IncrementalDetokenizer:
    """The pieces of push() and flush() together are tokenizer.decode() of all tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        raise NotImplementedError(tokenizer)

    def push(self, token_id: int) -> str:
        raise NotImplementedError(token_id)

    def flush(self) -> str:
        raise NotImplementedError
