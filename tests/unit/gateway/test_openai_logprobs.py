"""How log probabilities are written for plain completions."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.gateway.openai_logprobs import LEAST_LOGPROB, CompletionLogprobs
from shared.checkpoint.locate import PACKAGED_MODEL, locate
from shared.checkpoint.tokenizer import TextTokenizer, load_tokenizer
from shared.messages.tokens import PromptLogprobs, TokenLogprobs

BYTES = load_tokenizer(locate("dummy:tiny"))
WORDS = load_tokenizer(locate(PACKAGED_MODEL))


def pieces_of(values: list[float], tops: list[list[tuple[int, float]]]) -> list[PromptLogprobs]:
    """In runs of three tokens."""
    num_top = len(tops[0])
    return [
        PromptLogprobs(
            first=1 + start,
            logprobs=np.array(values[start : start + 3], "<f4").tobytes(),
            num_top=num_top,
            top_tokens=np.array(
                [token for one in tops[start : start + 3] for token, _ in one], "<i4"
            ).tobytes(),
            top_logprobs=np.array(
                [value for one in tops[start : start + 3] for _, value in one], "<f4"
            ).tobytes(),
        )
        for start in range(0, len(values), 3)
    ]


def scored(tokenizer: TextTokenizer, tokens: list[int], text: str) -> dict[str, Any]:
    size = len(tokens) - 1
    pieces = pieces_of([-1.0] * size, [[]] * size) if size else []
    return CompletionLogprobs(tokenizer).write_prompt(tokens, text, pieces)


def test_every_piece_is_told_in_order_and_the_answer_follows() -> None:
    writer = CompletionLogprobs(BYTES)
    values = [-0.5, -1.0, -1.5, -2.0]
    tops = [[(65 + place, -0.25), (66 + place, -3.0)] for place in range(4)]
    first = writer.write_prompt([*b"xABCD"], "xABCD", pieces_of(values, tops))
    then = writer.write([*b"E"], [TokenLogprobs(logprob=-4.0)])
    assert first["token_logprobs"] == [None, *values]
    assert first["top_logprobs"][1] == {"A": -0.25, "B": -3.0}
    assert first["top_logprobs"][4] == {"D": -0.25, "E": -3.0}
    assert then == {
        "tokens": ["E"],
        "token_logprobs": [-4.0],
        "top_logprobs": [{"E": -4.0}],
        "text_offset": [5],
    }


def test_what_json_cannot_say_is_the_least_number() -> None:
    pieces = pieces_of([-math.inf], [[(65, -math.inf)]])
    found = CompletionLogprobs(BYTES).write_prompt([*b"xB"], "xB", pieces)
    assert found["token_logprobs"] == [None, LEAST_LOGPROB]
    assert found["top_logprobs"][1] == {"A": LEAST_LOGPROB, "B": LEAST_LOGPROB}


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS], ids=["bytes", "words"])
@given(st.text(min_size=1, max_size=40))
def test_offsets_cut_the_text_into_its_tokens(tokenizer: TextTokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assume(tokens)  # else it is no prompt
    offsets = scored(tokenizer, tokens, text)["text_offset"]
    assert offsets == sorted(offsets)
    assert max(offsets) <= len(text)
    if tokenizer.decode(tokens) != text:
        return  # it has no tokens for some characters
    assert offsets[0] == 0
    for token, start, end in zip(tokens, offsets, [*offsets[1:], len(text)], strict=True):
        raw = tokenizer.alone(token)
        # One with half a character begins where the character does.
        whole = raw.decode("utf-8", "ignore")
        assert text[start:end] == whole if whole.encode() == raw else whole in text[start:]


def test_characters_without_a_token_are_skipped() -> None:
    text = "a\U00040000b"
    tokens = WORDS.encode(text)
    assert WORDS.decode(tokens) != text
    offsets = scored(WORDS, tokens, text)["text_offset"]
    assert [text[at] for at in (offsets[0], offsets[-1])] == ["a", "b"]


def test_special_tokens_take_room_only_where_the_text_has_them() -> None:
    start = WORDS.encode("<|im_start|>")
    assert len(start) == 1
    words = WORDS.encode("a b")
    assert scored(WORDS, [*start, *words], "<|im_start|>a b")["text_offset"] == [0, 12, 13]
    assert scored(WORDS, [*start, *words], "a b")["text_offset"] == [0, 0, 1]
    assert scored(WORDS, [*words, *start, *words], "a ba b")["text_offset"] == [0, 1, 3, 3, 4]


def test_offsets_of_the_answer_begin_after_the_prompt_whatever_its_tokens_are() -> None:
    writer = CompletionLogprobs(BYTES)
    writer.write_prompt([*b"ab"], "another text", pieces_of([-1.0], [[]]))
    then = writer.write([*b"c"], [TokenLogprobs(logprob=-1.0)])
    assert then["text_offset"] == [len("another text")]
