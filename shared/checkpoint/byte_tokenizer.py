"""The tokenizer of dummy models: one token for each byte, so every text round-trips."""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from shared.checkpoint.byte_level import BYTE_TO_CHAR

_NUM_BYTES = 256
BYTE_SPECIALS = ("<|eos|>", "<|start|>", "<|end|>")
BYTE_EOS_ID = _NUM_BYTES


def is_readable(token_id: int) -> bool:
    """Whether a token alone is visible text: neither a special nor a part of a character."""
    return 0x20 <= token_id < 0x7F or token_id >= _NUM_BYTES + len(BYTE_SPECIALS)


def build_byte_tokenizer(vocab_size: int) -> Tokenizer:
    """Ids 0-255 are bytes, then the specials; a model may emit the rest, which read `<id>`."""
    vocab = {BYTE_TO_CHAR[byte]: byte for byte in range(_NUM_BYTES)}
    for offset, special in enumerate(BYTE_SPECIALS):
        vocab[special] = _NUM_BYTES + offset
    for token_id in range(len(vocab), vocab_size):
        vocab[f"<{token_id}>"] = token_id
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(special, special=True, normalized=False) for special in BYTE_SPECIALS]
    )
    return tokenizer
