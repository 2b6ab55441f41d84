"""Who asks: API keys and the admin key. Keys are compared in constant time and never logged."""

import hashlib
import hmac
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from services.gateway.body_parts import Priority
from services.gateway.errors import ApiError
from shared.messages.common import ErrorCode
from shared.runtime.errors import ServiceError

HASHED = "sha256:"
ADMIN = "admin"
RANK: dict[Priority, int] = {"low": 0, "normal": 1, "high": 2}
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class TenantEntry(BaseModel):
    """One tenant in the file of keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Annotated[list[SecretStr], Field(min_length=1)]
    """In clear, or as `sha256:<hex>` of the key."""
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    max_priority: Priority | None = None


_FILE = TypeAdapter(dict[TenantName, TenantEntry])


@dataclass(frozen=True, slots=True)
class Tenant:
    """`name` is empty for everybody in a deployment without keys."""

    name: str
    max_in_flight: int
    max_priority: Priority


@dataclass(slots=True)
class Caller:
    """One request's sender."""

    tenant: Tenant
    is_admin: bool

    def priority(self, wanted: Priority | None) -> Priority:
        """The one that was asked for, or the usual one; raises ApiError 403 for too high a one."""
        highest = self.tenant.max_priority
        if wanted is None:
            return min("normal", highest, key=lambda one: RANK[one])
        if RANK[wanted] > RANK[highest]:
            raise ApiError(
                403,
                f"Invalid 'priority': this key allows at most {highest}",
                param="priority",
                code="priority_not_allowed",
            )
        return wanted


@dataclass
class Callers:
    """Owns the digests of all keys and how many requests of each tenant are in flight.

    Without tenants everybody may ask, in one tenant without a name.
    """

    tenants: dict[bytes, Tenant]
    anybody: Tenant
    admin_key: SecretStr | None
    _in_flight: dict[str, int] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return not self.tenants

    def identify(self, authorization: str) -> Caller:
        """Raises ApiError 401 when keys are needed and this is none of them."""
        scheme, _, given = authorization.partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else ""
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        is_admin = bool(key) and self._is_admin(digest)
        found: Tenant | None = None
        for known, tenant in self.tenants.items():  # all of them: the time tells nothing
            if hmac.compare_digest(known, digest):
                found = tenant
        if is_admin:
            name = "" if self.is_open else ADMIN
            return Caller(Tenant(name, self.anybody.max_in_flight, "high"), is_admin=True)
        if self.is_open:
            return Caller(self.anybody, is_admin=False)
        if found is None:
            message = "Incorrect API key provided." if key else "You did not provide an API key."
            hint = "Send it as 'Authorization: Bearer <key>'."
            raise ApiError(401, f"{message} {hint}", code="invalid_api_key")
        return Caller(found, is_admin=False)

    def check_admin(self, caller: Caller, field_name: str) -> None:
        """`placement` and `policy` steer the cluster: they need the admin key."""
        if not caller.is_admin:
            raise ApiError(
                403,
                f"'{field_name}' needs the admin key: Authorization: Bearer <MOONPOOL_ADMIN_KEY>",
                param=field_name,
                code="admin_key_required",
            )

    def take(self, tenant: Tenant, num_choices: int) -> None:
        """Count a request as in flight until `give_back`; raises ApiError 429 over the limit."""
        now = self._in_flight.get(tenant.name, 0)
        if now + num_choices > tenant.max_in_flight:
            raise ApiError(
                429,
                f"{now} requests of this key are in flight, {tenant.max_in_flight} are allowed; "
                "send this one when one of them has ended",
                code="concurrency_limit",
            )
        self._in_flight[tenant.name] = now + num_choices

    def give_back(self, tenant: Tenant, num_choices: int) -> None:
        left = self._in_flight[tenant.name] - num_choices
        if left:
            self._in_flight[tenant.name] = left
        else:
            del self._in_flight[tenant.name]

    @property
    def num_in_flight(self) -> int:
        return sum(self._in_flight.values())

    def _is_admin(self, digest: bytes) -> bool:
        key = self.admin_key.get_secret_value() if self.admin_key is not None else ""
        own = hashlib.sha256(key.encode()).digest()
        return hmac.compare_digest(own, digest) and bool(key)


def load_callers(
    *,
    keys_file: Path | None,
    keys: SecretStr | None,
    admin_key: SecretStr | None,
    max_in_flight: int,
    max_priority: Priority,
) -> Callers:
    """From the settings; raises ServiceError that names the setting, never a key."""
    entries: dict[str, TenantEntry] = {}
    if keys_file is not None:
        try:
            entries = _entries("MOONPOOL_API_KEYS_FILE", keys_file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise _bad("MOONPOOL_API_KEYS_FILE", f"cannot read {keys_file}: {error}") from None
    if keys is not None:
        for name, entry in _entries("MOONPOOL_API_KEYS", keys.get_secret_value()).items():
            if name in entries:
                raise _bad("MOONPOOL_API_KEYS", f"tenant {name} is in the file of keys too")
            entries[name] = entry
    digests: dict[bytes, Tenant] = {}
    for name, entry in entries.items():
        tenant = Tenant(
            name,
            entry.max_in_flight or max_in_flight,
            min(entry.max_priority or max_priority, max_priority, key=lambda one: RANK[one]),
        )
        for key in entry.keys:
            digest = _digest(name, key.get_secret_value())
            if digest in digests:
                raise _bad("MOONPOOL_API_KEYS", f"tenant {name} has a key that is there already")
            digests[digest] = tenant
    # Without keys only the gateway's own limit holds.
    return Callers(digests, Tenant("", sys.maxsize, max_priority), admin_key)


def _entries(setting: str, text: str) -> dict[str, TenantEntry]:
    try:
        entries = _FILE.validate_python(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _bad(setting, f"{where}: {first['msg']}") from None
    except ValueError:
        raise _bad(setting, 'is not JSON such as {"<tenant>": {"keys": ["<key>"]}}') from None
    if not entries:
        raise _bad(setting, "names no tenant; without keys leave the setting out")
    return entries


def _digest(name: str, key: str) -> bytes:
    if not key.startswith(HASHED):
        if len(key) < 8:
            raise _bad("MOONPOOL_API_KEYS", f"a key of tenant {name} has less than 8 characters")
        return hashlib.sha256(key.encode()).digest()
    try:
        digest = bytes.fromhex(key.removeprefix(HASHED))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise _bad("MOONPOOL_API_KEYS", f"tenant {name}: {HASHED} needs 64 hex digits")
    return digest


def _bad(setting: str, problem: str) -> ServiceError:
    return ServiceError(ErrorCode.BAD_REQUEST, f"{setting}: {problem}")
