"""Ids of requests."""

import pytest
from pydantic import TypeAdapter

from services.gateway.errors import ApiError
from services.gateway.request_ids import make_ids
from shared.messages.common import Token

TOKEN: TypeAdapter[str] = TypeAdapter(Token)


@pytest.mark.parametrize("header", [None, "abc", "a.b>c*d", "x" * 256, "~"])
def test_the_id_inside_is_safe_in_a_subject_whatever_the_client_sends(header: str | None) -> None:
    ids = make_ids(header)
    TOKEN.validate_python(ids.request_id)
    TOKEN.validate_python(ids.trace_name)
    assert header in (None, ids.client_id)


def test_one_client_id_used_twice_names_two_requests() -> None:
    assert make_ids("same").request_id != make_ids("same").request_id


@pytest.mark.parametrize("header", ["", "a b", "ä", "a\tb", "x" * 257, "a\n"])
def test_what_is_no_id_is_refused(header: str) -> None:
    with pytest.raises(ApiError) as caught:
        make_ids(header)
    assert caught.value.status == 400
    assert caught.value.param == "X-Request-Id"
