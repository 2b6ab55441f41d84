"""The part of a NATS server's configuration that says who may do what. Writes no file."""

import json
from collections.abc import Mapping

from shared.messages.access import ACCESS, ADMIN

RESPONSE_EXPIRES = "10m"
"""An answer may take as long as a transfer of KV."""


def authorization(passwords: Mapping[str, str]) -> str:
    """Users by service with the subjects that their service needs, and one that may do all."""
    users = [_user(name, passwords[name]) for name in ACCESS]
    admin = f"    {{user: {ADMIN}, password: {json.dumps(passwords[ADMIN])}}}"
    return "authorization {\n  users = [\n" + "\n".join([*users, admin]) + "\n  ]\n}\n"


def tls(cert: str, key: str) -> str:
    return f"tls {{\n  cert_file: {json.dumps(cert)}\n  key_file: {json.dumps(key)}\n}}\n"


def _user(name: str, password: str) -> str:
    access = ACCESS[name]
    permissions = (
        f"publish: {{allow: {json.dumps(access.publish)}}}, "
        f"subscribe: {{allow: {json.dumps(access.subscribe)}}}, "
        f"allow_responses: {{max: 1, expires: {json.dumps(RESPONSE_EXPIRES)}}}"
    )
    return (
        f"    {{user: {json.dumps(name)}, password: {json.dumps(password)}, "
        f"permissions: {{{permissions}}}}}"
    )
