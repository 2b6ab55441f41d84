"""Text of a stream of real tokens: never half a character, never a part of a stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.text_stream import TextStream
from shared.checkpoint.detokenizer import IncrementalDetokenizer
from shared.checkpoint.text_model import load_text_model
from shared.checkpoint.tokenizer import TextTokenizer

MODELS = ("SmolLM2-135M-Instruct", "dummy:tiny")
BROKEN = "\ufffd"
# Letters of one to four bytes, marks that combine, and a flag made of two characters.
TEXTS = st.text(st.sampled_from("ab é語🌑\u0301🇫🇷\n"), max_size=24)
TOKENIZERS = {name: load_text_model(name).tokenizer for name in MODELS}


@pytest.fixture(scope="module", params=MODELS)
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return TOKENIZERS[request.param]


def pieces_of(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push(one) for one in ids), detokenizer.flush()]


@settings(deadline=None, max_examples=60)
@given(text=TEXTS)
def test_every_piece_of_a_text_is_whole_characters(tokenizer: TextTokenizer, text: str) -> None:
    pieces = pieces_of(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert not any(BROKEN in piece for piece in pieces)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_tokens_give_the_text_of_all_of_them_and_take_nothing_back(
    tokenizer: TextTokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=24))
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert all(piece.encode("utf-8").decode("utf-8") == piece for piece in pieces)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_random_bytes_of_a_character_come_whole_or_as_one_that_is_broken(
    tokenizer: TextTokenizer, data: st.DataObject
) -> None:
    """Tokens of single bytes, as a model gives them for rare characters."""
    raw = data.draw(st.one_of(st.binary(max_size=12), TEXTS.map(lambda text: text.encode())))
    by_byte = {tokenizer.alone(one): one for one in range(300)}
    ids = [by_byte[bytes([byte])] for byte in raw if bytes([byte]) in by_byte]
    wanted = b"".join(tokenizer.alone(one) for one in ids).decode("utf-8", "replace")
    assert "".join(pieces_of(tokenizer, ids)) == wanted


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_stop_anywhere_in_the_text_ends_it_there_token_by_token(
    tokenizer: TextTokenizer, data: st.DataObject
) -> None:
    text = data.draw(TEXTS.filter(bool))
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 6))]
    stream = TextStream(IncrementalDetokenizer(tokenizer), [stop])
    given_text = ""
    for token in tokenizer.encode(text):
        given_text += stream.push(token)
        assert text[: text.find(stop)].startswith(given_text)
    given_text += stream.finish()
    assert stream.is_stopped
    assert given_text == text[: text.find(stop)]
