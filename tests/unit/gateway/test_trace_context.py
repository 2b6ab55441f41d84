"""A client's trace goes on; what is no trace starts a new one."""

import re

import pytest

from services.gateway.namespaces import namespace_of
from services.gateway.trace_context import continued, trace_id

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_a_valid_trace_goes_on_with_a_span_of_our_own(flags: str) -> None:
    made = continued(f"00-{TRACE}-{SPAN}-{flags}")
    assert FORM.fullmatch(made)
    assert trace_id(made) == TRACE
    assert SPAN not in made
    assert made.endswith("01") is (flags != "00")
    assert trace_id(continued(f"cc-{TRACE}-{SPAN}-{flags}-later")) == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
    ],
)
def test_anything_else_starts_a_new_trace(header: str | None) -> None:
    made = continued(header)
    assert FORM.fullmatch(made)
    assert trace_id(made) != TRACE
    assert made != continued(header)


def test_namespaces_differ_by_tenant_and_by_salt() -> None:
    assert namespace_of("", None) == b""
    pairs = [("", ""), ("", "a"), ("a", None), ("a", "a"), ("a", ""), ("b", "a")]
    made = {namespace_of(tenant, salt) for tenant, salt in pairs}
    assert len(made) == len(pairs)
    assert namespace_of("a", "b") == namespace_of("a", "b")
