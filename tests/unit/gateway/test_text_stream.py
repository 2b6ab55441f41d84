"""Stop strings over every boundary."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.text_stream import TextStream
from shared.checkpoint.detokenizer import IncrementalDetokenizer
from shared.checkpoint.text_model import load_text_model

TOKENIZER = load_text_model("dummy:tiny").tokenizer


class Pieces:
    """Token i is the i-th piece of a text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return ""


def answer(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], bool]:
    stream = TextStream(Pieces(pieces), stops)
    given = [stream.push(index) for index in range(len(pieces))]
    return [*given, stream.finish()], stream.is_stopped


def expected(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """By the definition: the stop string whose end comes first, the longest of these."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(
    st.lists(st.text("abé", max_size=4), max_size=8),
    st.lists(st.text("abé", min_size=1, max_size=3), max_size=3),
)
def test_the_answer_ends_before_the_first_stop_however_it_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    given_pieces, is_stopped = answer(pieces, stops)
    assert ("".join(given_pieces), is_stopped) == expected("".join(pieces), stops)


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.text("ab", min_size=1, max_size=4))
def test_no_part_of_a_stop_is_given_before_it_is_known(pieces: list[str], stop: str) -> None:
    given_pieces, _ = answer(pieces, [stop])
    whole, _ = expected("".join(pieces), [stop])
    for count in range(len(given_pieces)):
        assert whole.startswith("".join(given_pieces[:count]))


def test_text_that_cannot_become_a_stop_is_given_at_once() -> None:
    given_pieces, _ = answer(["hel", "lo ", "EN", "D"], ["END"])
    assert given_pieces == ["hel", "lo ", "", "", ""]
    given_pieces, _ = answer(["hel", "lo ", "EN", "T"], ["END"])
    assert given_pieces == ["hel", "lo ", "", "ENT", ""]


@pytest.mark.parametrize("stop", ["é", "🌕", "x🌕", "🌕é"])
def test_a_stop_of_many_bytes_is_found_token_by_token(stop: str) -> None:
    text = f"aé?🌑{stop}after"
    stream = TextStream(IncrementalDetokenizer(TOKENIZER), [stop])
    whole, _ = expected(text, [stop])
    given = "".join(stream.push(token) for token in TOKENIZER.encode(text)) + stream.finish()
    assert given == whole
    assert stream.is_stopped


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    stream = TextStream(IncrementalDetokenizer(TOKENIZER), [])
    given = [stream.push(token) for token in "é".encode()[:1]]
    assert given == [""]
    assert stream.finish() == "\ufffd"
