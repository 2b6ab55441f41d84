import random
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.prompt_pieces import PromptPieces
from shared.messages.tokens import PromptLogprobs


def piece(first: int, num_tokens: int, value: float = -1.0) -> PromptLogprobs:
    return PromptLogprobs(first=first, logprobs=np.full(num_tokens, value, dtype="<f4").tobytes())


def cut(num_tokens: int, ends: list[int]) -> list[PromptLogprobs]:
    """Pieces of a prompt's scores that end at these positions."""
    bounds = sorted({1, num_tokens, *(end for end in ends if 1 < end < num_tokens)})
    return [piece(a, b - a) for a, b in pairwise(bounds)]


@given(st.integers(1, 60), st.lists(st.integers(1, 60)), st.integers(0, 2**32), st.booleans())
def test_they_are_whole_once_each_has_come_in_any_order(
    num_tokens: int, ends: list[int], seed: int, repeats: bool
) -> None:
    expected = cut(num_tokens, ends)
    pieces = PromptPieces(num_tokens)
    coming = expected * (2 if repeats else 1)
    random.Random(seed).shuffle(coming)
    missing = {one.first for one in expected}
    for one in coming:
        assert (pieces.whole() is None) == bool(missing)
        pieces.take(one)
        missing.discard(one.first)
    assert pieces.whole() == tuple(expected)


def test_a_new_attempt_begins_with_nothing() -> None:
    pieces = PromptPieces(5)
    pieces.take(piece(1, 2, -9.0))
    pieces.begin_attempt()
    pieces.take(piece(3, 2))
    assert pieces.whole() is None
    pieces.take(piece(1, 2))
    assert pieces.whole() == (piece(1, 2), piece(3, 2))


def test_pieces_that_do_not_fit_together_are_not_whole() -> None:
    for wrong in ([piece(1, 2), piece(2, 3)], [piece(1, 5)], [piece(2, 3)]):
        pieces = PromptPieces(5)
        for one in wrong:
            pieces.take(one)
        assert pieces.whole() is None


def test_what_was_given_is_not_changed_any_more() -> None:
    pieces = PromptPieces(3)
    pieces.take(piece(1, 2))
    pieces.is_given = True
    pieces.take(piece(2, 1))
    assert pieces.whole() == (piece(1, 2),)


def test_a_piece_of_a_later_pass_replaces_that_of_a_void_one() -> None:
    pieces = PromptPieces(3)
    pieces.take(piece(1, 2, -9.0))
    pieces.take(piece(1, 2, -1.0))
    assert pieces.whole() == (piece(1, 2, -1.0),)
