"""The wire: round trips in both encodings, and bad payloads that name their field."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.common import RequestRef
from shared.messages.conductor import PlaceRequest
from shared.messages.envelope import MessageError, decode, encode

REF = RequestRef(request_id="r1", attempt=2, gateway="g", gateway_incarnation="i")


@given(st.binary(max_size=64), st.integers(1, 1 << 20), st.booleans())
def test_a_message_survives_both_encodings(chain: bytes, tokens: int, as_json: bool) -> None:
    message = PlaceRequest(ref=REF, model="m", num_tokens=tokens, max_tokens=1, chain=chain)
    assert decode(encode(message, as_json=as_json), PlaceRequest) == message


def test_json_starts_with_a_brace_and_msgpack_never_does() -> None:
    message = PlaceRequest(ref=REF, model="m", num_tokens=1, max_tokens=1)
    assert encode(message, as_json=True)[:1] == b"{"
    assert encode(message)[:1] != b"{"


def test_the_bad_field_is_named() -> None:
    good = PlaceRequest(ref=REF, model="m", num_tokens=1, max_tokens=1).model_dump()
    with pytest.raises(MessageError, match="num_tokens") as caught:
        decode(msgpack.packb({**good, "num_tokens": 0}), PlaceRequest)
    assert caught.value.field == "num_tokens"


def test_an_unknown_version_is_refused() -> None:
    good = PlaceRequest(ref=REF, model="m", num_tokens=1, max_tokens=1).model_dump()
    with pytest.raises(MessageError) as caught:
        decode(msgpack.packb({**good, "v": 2}), PlaceRequest)
    assert caught.value.field == "v"


def test_unknown_fields_are_ignored() -> None:
    message = PlaceRequest(ref=REF, model="m", num_tokens=1, max_tokens=1)
    assert decode(msgpack.packb({**message.model_dump(), "new": 1}), PlaceRequest) == message


@given(st.binary(max_size=256))
def test_any_bytes_are_a_message_or_a_message_error(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data, PlaceRequest)
