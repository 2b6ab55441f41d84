"""Who may ask, and how much at once."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from services.gateway.callers import Callers, load_callers
from services.gateway.errors import ApiError
from shared.runtime.errors import ServiceError

ADMIN = "an admin key"


def loaded(entries: Any = None, **changes: Any) -> Callers:
    text = entries if isinstance(entries, str) or entries is None else json.dumps(entries)
    settings: dict[str, Any] = {
        "keys_file": None,
        "keys": None if text is None else SecretStr(text),
        "admin_key": SecretStr(ADMIN),
        "max_in_flight": 4,
        "max_priority": "high",
        **changes,
    }
    return load_callers(**settings)


def refused(callers: Callers, authorization: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        callers.identify(authorization)
    assert caught.value.status == 401
    assert caught.value.headers == {"www-authenticate": "Bearer"}
    return caught.value


def test_without_keys_everybody_may_ask_in_one_tenant() -> None:
    callers = loaded()
    for authorization in ("", "Bearer sk-any", "Basic x"):
        caller = callers.identify(authorization)
        assert (caller.tenant.name, caller.is_admin) == ("", False)
    assert callers.identify(f"Bearer {ADMIN}").is_admin
    assert callers.identify(f"bearer  {ADMIN} ").tenant.name == ""


def test_a_key_names_its_tenant_in_clear_or_as_a_digest() -> None:
    digest = hashlib.sha256(b"key-of-beta").hexdigest()
    callers = loaded(
        {
            "acme": {"keys": ["key-of-acme", "another-key"], "max_in_flight": 2},
            "beta": {"keys": [f"sha256:{digest}"], "max_priority": "low"},
        }
    )
    assert callers.identify("Bearer key-of-acme").tenant.name == "acme"
    assert callers.identify("Bearer another-key").tenant.max_in_flight == 2
    beta = callers.identify("Bearer key-of-beta")
    assert (beta.tenant.name, beta.priority(None)) == ("beta", "low")
    with pytest.raises(ApiError, match="at most low"):
        beta.priority("normal")
    assert callers.identify(f"Bearer {ADMIN}").tenant.name == "admin"
    for authorization in ("", "Bearer", "Bearer wrong", "Basic key-of-acme", f"Bearer {digest}"):
        assert "key" in refused(callers, authorization).message
    assert "wrong" not in refused(callers, "Bearer wrong").message


def test_an_empty_admin_key_lets_nobody_in() -> None:
    for key in (None, SecretStr("")):
        callers = loaded({"acme": {"keys": ["key-of-acme"]}}, admin_key=key)
        refused(callers, "Bearer ")
        refused(callers, "")


def test_requests_of_a_tenant_are_counted_until_they_are_given_back() -> None:
    callers = loaded({"acme": {"keys": ["key-of-acme"]}})
    tenant = callers.identify("Bearer key-of-acme").tenant
    callers.take(tenant, 3)
    with pytest.raises(ApiError) as caught:
        callers.take(tenant, 2)
    assert (caught.value.status, caught.value.code) == (429, "concurrency_limit")
    assert "retry-after" in caught.value.headers
    callers.give_back(tenant, 3)
    assert callers.num_in_flight == 0
    callers.take(tenant, 4)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("nonsense", "is not JSON"),
        ("[]", "valid dictionary"),
        ("{}", "names no tenant"),
        ({"acme": {"keys": []}}, "acme.keys"),
        ({"acme": {"keys": ["short"]}}, "less than 8"),
        ({"acme": {"keys": ["sha256:zz"]}}, "64 hex digits"),
        ({"acme": {"keys": ["key-of-acme"], "more": 1}}, "acme.more"),
        ({"a b": {"keys": ["key-of-acme"]}}, "a b"),
        ({"acme": {"keys": ["key-of-acme"]}, "beta": {"keys": ["key-of-acme"]}}, "already"),
    ],
)
def test_a_bad_file_is_told_without_its_keys(entries: Any, problem: str) -> None:
    with pytest.raises(ServiceError) as caught:
        loaded(entries)
    assert problem in caught.value.message
    assert "key-of-acme" not in caught.value.message
    assert "short" not in caught.value.message


def test_keys_come_from_a_file_and_from_the_environment_together(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"acme": {"keys": ["key-of-acme"]}}))
    callers = loaded({"beta": {"keys": ["key-of-beta"]}}, keys_file=file)
    assert callers.identify("Bearer key-of-acme").tenant.name == "acme"
    assert callers.identify("Bearer key-of-beta").tenant.name == "beta"
    with pytest.raises(ServiceError, match="in the file"):
        loaded({"acme": {"keys": ["key-of-acme2"]}}, keys_file=file)
    with pytest.raises(ServiceError, match="MOONPOOL_API_KEYS_FILE"):
        loaded(keys_file=tmp_path / "nothing")
    assert "key-of-acme" not in repr(callers)
