"""Which cluster a command talks to: the one named, else the one that runs on this machine."""

import os
from dataclasses import dataclass

from scripts.cli.output import CommandError
from scripts.launcher import state_file

DEFAULT_URL = "http://127.0.0.1:8000"
UP_HINT = "start a cluster with `moonpool up`, or name one"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a cluster answers; what is not known is empty."""

    base_url: str
    nats_url: str
    admin_key: str


def find_target(
    url: str | None = None, nats: str | None = None, admin_key: str | None = None
) -> Target | None:
    """The cluster that is meant; None when none is named and none runs here."""
    url = (url or os.environ.get("MOONPOOL_URL", "")).rstrip("/").removesuffix("/v1")
    nats = nats or os.environ.get("MOONPOOL_NATS_URL", "")
    admin_key = admin_key or os.environ.get("MOONPOOL_ADMIN_KEY", "")
    running = state_file.find_running()
    if url:
        running = [cluster for cluster in running if cluster.base_url == url]
    elif nats:
        running = [cluster for cluster in running if cluster.nats_url == nats]
    if running:
        known = running[0]
        return Target(url or known.base_url, nats or known.nats_url, admin_key or known.admin_key)
    if url or nats:
        return Target(url or DEFAULT_URL, nats, admin_key)
    return None


def need_nats(target: Target | None) -> str:
    """The NATS address of the target, or a clear error."""
    if target is None or not target.nats_url:
        raise CommandError(
            "no cluster runs on this machine",
            hint=f"{UP_HINT}'s NATS with --nats nats://host:4222",
        )
    return target.nats_url
