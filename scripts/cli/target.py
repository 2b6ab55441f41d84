"""Which cluster a command talks to: the one named, else the one that runs on this machine."""

import asyncio
import os
from dataclasses import dataclass, field

from scripts.cli.output import CommandError
from scripts.launcher import state_file
from scripts.launcher.readiness import ask_conductor
from shared.messages.conductor import StateReply
from shared.runtime.bus import Bus, redacted
from shared.runtime.errors import ServiceError
from shared.runtime.nats_access import NatsAccess
from shared.runtime.settings import CommonSettings, read_settings

CONNECT_TIMEOUT_S = 5.0
DEFAULT_URL = "http://127.0.0.1:8000"
UP_HINT = "start a cluster with `moonpool up`, or name one"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a cluster answers; what is not known is empty."""

    base_url: str
    nats_url: str
    admin_key: str
    nats_access: NatsAccess = field(default_factory=NatsAccess)

    async def connect(self, name: str) -> Bus:
        """Its bus; raises CommandError when it has none or nobody answers in time."""
        url = need_target(self).nats_url
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await Bus.connect(url, name=name, access=self.nats_access)
        except (TimeoutError, OSError):
            raise CommandError(
                f"no NATS answers at {redacted(url)}",
                hint="is the cluster up? `moonpool up` starts one",
            ) from None
        except ServiceError as error:
            raise CommandError(error.message) from None


async def conductor_state(target: Target, name: str) -> StateReply:
    """What a conductor of it sees; CommandError when none answers."""
    bus = await target.connect(name)
    try:
        state = await ask_conductor(bus)
    finally:
        await bus.close()
    if state is None:
        raise CommandError("no conductor answers", hint="see `moonpool status`")
    return state


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
        return Target(
            url or known.base_url,
            nats or known.nats_url,
            admin_key or known.admin_key,
            known.nats_access,
        )
    if url or nats:
        access = read_settings(CommonSettings).nats_access()
        return Target(url or DEFAULT_URL, nats, admin_key, access)
    return None


def need_target(target: Target | None) -> Target:
    """The target, when it says where its NATS is, or a clear error."""
    if target is None or not target.nats_url:
        raise CommandError(
            "no cluster runs on this machine",
            hint=f"{UP_HINT}'s NATS with --nats nats://host:4222",
        )
    return target
