"""A folder of credentials: made once, found again. One sub-folder for each who needs some.

`<service>/moonpool_nats_user` and so on are read by the service itself (MOONPOOL_SECRETS_DIR),
`nats/` and `redis/` are for the servers, `admin/` is for the operator.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.credentials import nats_config, redis_acl
from scripts.credentials.certificates import Authority
from scripts.launcher.errors import LaunchError
from shared.messages.access import ADMIN, SERVICES
from shared.runtime.nats_access import NatsAccess
from shared.runtime.tls import TlsFiles

DEFAULT_HOSTS = ("localhost", "127.0.0.1", "::1")
FORMAT = "2"
"""Written last: a folder without it is no whole set."""


@dataclass(frozen=True, slots=True)
class CredentialSet:
    folder: Path

    @property
    def nats_folder(self) -> Path:
        """users.conf, the certificate and its key, and the CA for servers of one cluster."""
        return self.folder / "nats"

    @property
    def redis_folder(self) -> Path:
        """users.acl, the certificate and its key."""
        return self.folder / "redis"

    @property
    def ca(self) -> Path:
        return self.folder / ADMIN / "ca.pem"

    @property
    def is_whole(self) -> bool:
        try:
            return (self.folder / "format").read_text() == FORMAT
        except OSError:
            return False

    def refuse_older(self) -> None:
        """LaunchError when another version made it: its authority's key is gone, nothing can be
        added."""
        path = self.folder / "format"
        if path.is_file() and not self.is_whole:
            raise LaunchError(
                f"{self.folder} was made by another version of moonpool",
                hint="make a new set (compose: docker compose down --volumes, then up)",
            )

    def password(self, owner: str, server: str = "nats") -> str:
        return (self.folder / owner / f"moonpool_{server}_password").read_text()

    def environment(self, service: str) -> dict[str, str]:
        """Where a service finds its own."""
        own = self.folder / service
        return {"MOONPOOL_SECRETS_DIR": str(own), "MOONPOOL_NATS_CA": str(own / "ca.pem")}

    def redis_url(self, url: str) -> str:
        """`url` with the operator's user and password."""
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{ADMIN}:{self.password(ADMIN, 'redis')}@{rest}"

    def access(self, service: str) -> NatsAccess:
        """How a service shows itself to NATS."""
        return NatsAccess(
            service, self.password(service), TlsFiles(self.folder / service / "ca.pem")
        )

    def operator(self) -> NatsAccess:
        return NatsAccess(ADMIN, self.password(ADMIN), TlsFiles(self.ca))


def make_set(
    folder: Path,
    *,
    hosts: Sequence[str] = DEFAULT_HOSTS,
    is_for_redis: bool = True,
    is_readable_by_all: bool = False,
) -> CredentialSet:
    """A new set in a folder that is not there or empty.

    `is_readable_by_all` is for volumes, where each service gets the one folder that is its own.
    """
    made = CredentialSet(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(path.is_file() for path in folder.rglob("*")):
        raise LaunchError(
            f"there are files in {folder} already",
            hint="give a new folder: credentials that are in use are not replaced in place",
        )
    passwords = {name: secrets.token_urlsafe(32) for name in (*SERVICES, ADMIN)}
    redis_passwords = {name: secrets.token_urlsafe(32) for name in (redis_acl.INDEX_USER, ADMIN)}
    authority = Authority()
    for name, password in passwords.items():
        files = {"nats_user": name, "nats_password": password}
        if is_for_redis and name in redis_passwords:
            files |= {"redis_user": name, "redis_password": redis_passwords[name]}
        for field, text in files.items():
            _write(folder / name / f"moonpool_{field}", text)
        _write(folder / name / "ca.pem", authority.pem.decode())
    _write(made.nats_folder / "users.conf", nats_config.authorization(passwords))
    _write(made.redis_folder / "users.acl", redis_acl.users(redis_passwords))
    for server in (made.nats_folder, made.redis_folder):
        _write(server / "ca.pem", authority.pem.decode())
        is_peer = server == made.nats_folder
        authority.write_server(hosts, server / "cert.pem", server / "key.pem", is_peer=is_peer)
    if is_readable_by_all:
        _open_to_all(folder)
    _write(folder / "format", FORMAT)
    return made


def remove_unfinished(folder: Path) -> None:
    """What `make_set` left there when it was ended before its end; nothing else in the folder."""
    own = ("moonpool_*", "*.pem", "users.conf", "users.acl", "nats-context.json")
    for owner in (*SERVICES, ADMIN, "nats", "redis"):
        for pattern in own:
            for path in (folder / owner).glob(pattern):
                path.unlink()


def find_set(folder: Path) -> CredentialSet:
    """The set that was made in this folder before."""
    found = CredentialSet(folder.resolve())
    found.refuse_older()
    if not found.is_whole:
        raise LaunchError(
            f"{folder} is no set of credentials", hint=f"make one: moonpool credentials {folder}"
        )
    return found


def write_nats_context(access: NatsAccess, url: str, description: str, path: Path) -> Path:
    """A context of the nats CLI, which takes the path of a file wherever it takes a name."""
    context = {"description": description, "url": url}
    if access.user is not None:
        context |= {"user": access.user, "password": access.password or ""}
    if access.tls is not None:
        context["ca"] = str(access.tls.ca)
    _write(path, json.dumps(context) + "\n")
    return path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_text(text)


def _open_to_all(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
