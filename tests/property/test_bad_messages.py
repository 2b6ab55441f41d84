"""Whatever comes as a message is one, or is refused with the field that is wrong."""

import importlib
import pkgutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shared.messages
from shared.messages.envelope import Message, MessageError, decode, encode
from tests.support.bad_bytes import payloads


def all_messages() -> list[type[Message]]:
    for module in pkgutil.iter_modules(shared.messages.__path__):
        importlib.import_module(f"shared.messages.{module.name}")
    found = [one for one in Message.__subclasses__() if one.__module__.startswith("shared.")]
    return sorted(found, key=lambda one: one.__name__)


@pytest.mark.parametrize("message_type", all_messages(), ids=lambda one: one.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_bytes_are_a_message_or_a_clear_error(
    message_type: type[Message], data: st.DataObject
) -> None:
    payload = data.draw(payloads(sorted(message_type.model_fields)))
    problem = ""
    try:
        message = decode(payload, message_type)
    except MessageError as error:
        problem = f"{error.field}: {error.problem}"
        message = None
    if message is None:
        assert len(problem) > len(": ")
    else:
        assert isinstance(decode(encode(message), message_type), message_type)
