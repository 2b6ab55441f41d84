"""Tests that share a cluster go to one worker; those of a file are never parted."""

from itertools import groupby
from pathlib import Path

import pytest

from tests.support import sharing

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("file", "scope"),
    [
        ("e2e/test_front_door.py", "dummy_cluster"),
        ("e2e/test_api_fuzz.py", "dummy_cluster"),
        ("e2e/test_whole_path.py", "real_cluster"),
        ("e2e/test_demo.py", "real_cluster"),
        ("fault/test_cancels.py", "fault_cluster"),
        ("e2e/test_separate_hosts.py", "tests/e2e/test_separate_hosts.py"),
    ],
)
def test_a_file_goes_with_those_that_share_its_cluster(file: str, scope: str) -> None:
    assert sharing.scope_of(f"tests/{file}") == scope


def test_what_is_shared_is_a_fixture() -> None:
    made = "".join(path.read_text() for path in TESTS.rglob("conftest.py"))
    assert [name for name in sharing.SHARED if f"def {name}(" not in made] == []


def test_scopes_stay_together_and_the_shared_ones_come_first(
    request: pytest.FixtureRequest,
) -> None:
    items = sharing.in_order(request.session.items[::-1])
    scopes = [
        name for name, _ in groupby(items, lambda one: sharing.scope_of(one.nodeid.split("::")[0]))
    ]
    assert len(scopes) == len(set(scopes))
    is_shared = [scope in sharing.SHARED for scope in scopes]
    assert is_shared == sorted(is_shared, reverse=True)
    assert {item.nodeid for item in items} == {item.nodeid for item in request.session.items}
