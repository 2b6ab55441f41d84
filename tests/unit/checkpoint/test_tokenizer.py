import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from shared.checkpoint.detokenizer import IncrementalDetokenizer
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import PACKAGED_MODEL, ModelSource, locate
from shared.checkpoint.tokenizer import TextTokenizer, load_tokenizer, tokenizer_fingerprint
from tests.support.gguf_builder import (
    MetadataValue,
    byte_level_metadata,
    llama_tensors,
    write_gguf,
)

NASTY = [
    "",
    "Hello, world!",
    "  two  spaces\t\ttabs \n\n lines\r\n",
    "naïve façade, Ünïcödé, ﬁligree",
    "👩‍👩‍👧 family, 🏳️‍🌈 flag, é vs é",
    "日本語のテキスト、한국어, العربية",
    "12345 + 67,890 = 80235.0",
    "a\u00a0b\u2028c\u200bd",
    "x" * 300,
]
BYTES = load_tokenizer(locate("dummy:tiny"))


def gguf(folder: Path, **changes: MetadataValue) -> ModelSource:
    metadata = byte_level_metadata() | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    return ModelSource("m", "gguf", path=write_gguf(folder / "m.gguf", metadata, llama_tensors()))


def byte_fallback() -> TextTokenizer:
    """A tokenizer in the manner of SentencePiece: words start with ▁, the rest are bytes."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {"▁": 256, "h": 257, "i": 258, "▁h": 259, "▁hi": 260, "<unk>": 261}
    merges = [("▁", "h"), ("▁h", "i")]
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return TextTokenizer(tokenizer, fingerprint="test", eos_token_ids=())


def streamed(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [detokenizer.push(token_id) for token_id in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("text", NASTY)
def test_a_dummy_gives_every_text_back(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


@pytest.mark.parametrize("text", NASTY)
def test_the_packaged_model_gives_every_text_back(text: str) -> None:
    try:
        tokenizer = load_tokenizer(locate(PACKAGED_MODEL))
    except CheckpointError as error:
        pytest.skip(str(error))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids)) == text


def test_the_packaged_model_splits_as_it_was_trained_to() -> None:
    try:
        tokenizer = load_tokenizer(locate(PACKAGED_MODEL))
    except CheckpointError as error:
        pytest.skip(str(error))
    assert tokenizer.encode("<|im_start|>user\n123") == [1, 4093, 198, 33, 34, 35]
    assert tokenizer.decode([1, 4093, 2]) == "user"
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 49152


def test_gguf_metadata_makes_a_tokenizer_with_merges_and_specials(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gguf(tmp_path))
    assert tokenizer.encode("<|im_start|>he h") == [256, 258, ord(" "), ord("h")]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_a_plain_prompt_may_get_the_special_tokens_of_its_model(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gguf(tmp_path, add_bos_token=True))
    assert tokenizer.encode("he") == [258]
    assert tokenizer.encode("he", add_special_tokens=True) == [256, 258]
    without = load_tokenizer(gguf(tmp_path, add_bos_token=False))
    assert without.encode("he", add_special_tokens=True) == [258]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model = 'llama'"),
        ({"pre": "chatglm-bpe"}, "tokenizer.ggml.pre = 'chatglm-bpe'"),
        ({"merges": ["he"]}, "tokenizer.ggml.merges"),
        ({"merges": ["zz zz"]}, "tokenizer.ggml.merges"),
    ],
)
def test_gguf_tokenizers_of_another_kind_name_the_key(
    tmp_path: Path, change: dict[str, MetadataValue], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        load_tokenizer(gguf(tmp_path, **change))


def test_a_broken_tokenizer_json_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(ModelSource("m", "hf", path=tmp_path))


def test_what_changes_tokens_changes_the_fingerprint(tmp_path: Path) -> None:
    plain = tokenizer_fingerprint(gguf(tmp_path))
    assert tokenizer_fingerprint(gguf(tmp_path)) == plain
    assert tokenizer_fingerprint(gguf(tmp_path, pre="gpt-2")) != plain
    assert tokenizer_fingerprint(gguf(tmp_path, merges=["t h"])) != plain


def test_many_threads_may_encode_at_once() -> None:
    expected = BYTES.encode(NASTY[4] * 50)
    results: list[bool] = []

    def work() -> None:
        results.extend(BYTES.encode(NASTY[4] * 50) == expected for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


@given(st.text())
def test_a_stream_never_shows_half_a_character(text: str) -> None:
    text = text.replace("\ufffd", "")
    pieces = streamed(BYTES, BYTES.encode(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 511)))
def test_a_stream_of_any_tokens_adds_up_to_the_text_of_all(ids: list[int]) -> None:
    assert "".join(streamed(BYTES, ids)) == BYTES.decode(ids)


def test_a_stream_shows_a_character_as_soon_as_it_is_whole() -> None:
    assert streamed(BYTES, BYTES.encode("aé€!")) == ["a", "", "é", "", "", "€", "!", ""]


def test_half_a_surrogate_pair_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match="character 2 is half of a surrogate pair"):
        BYTES.encode("ab\ud83d")


def test_special_tokens_are_not_shown() -> None:
    ids = BYTES.encode("<|start|>hi<|end|>")
    assert len(ids) == 4
    assert streamed(BYTES, ids) == ["", "h", "i", "", ""]


@pytest.mark.parametrize("text", [" hi hi", "é hi €", "日本 hi 👩‍👩‍👧"])
def test_other_decoders_stream_whole_characters_too(text: str) -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_character_do_not_hold_a_stream_back() -> None:
    pieces = streamed(byte_fallback(), [0xFF] * 8 + [257])
    assert pieces[3] != ""
    assert "".join(pieces).endswith("h")
