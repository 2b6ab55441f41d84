import pytest

from shared.simulator.trace import TraceError, TraceRequest, parse_trace

LINE = '{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]}'


def test_a_line_becomes_a_request():
    assert list(parse_trace(iter([LINE, "\n"]), "t")) == [TraceRequest(3.0, 700, 5, (0, 9))]


def test_served_mode_leaves_out_the_partial_block_and_trace_mode_caps_its_hit():
    (request,) = parse_trace(iter([LINE]), "t")
    assert request.blocks("served") == (0,)
    assert request.blocks("trace") == (0, 9)
    assert request.hit_tokens(2) == 700


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[]", "line 1: not a JSON object"),
        ("{", "line 1: "),
        (LINE.replace("input_length", "length"), "'input_length' is missing"),
        (LINE.replace("700", "0"), "input_length: must be at least 1"),
        (LINE.replace("5,", "-1,"), "output_length: must not be negative"),
        (LINE.replace("[0, 9]", "[1, 2, 3]"), "hash_ids: 3 ids for 700 tokens"),
    ],
)
def test_a_bad_line_is_named_with_its_field(line, words):
    with pytest.raises(TraceError, match="t line 1"):
        list(parse_trace(iter([line]), "t"))
    with pytest.raises(TraceError) as caught:
        list(parse_trace(iter([line]), "t"))
    assert words in str(caught.value)
