"""NATS and Redis: those that are named in the environment, else those of the cluster here."""

import os

from scripts.cli.output import CommandError
from scripts.cli.target import Target, find_target
from scripts.doctor.check import Check
from scripts.embedded.redis_server import check_redis
from scripts.index.asking import IndexAsker
from scripts.launcher.errors import LaunchError
from shared.runtime.bus import Bus, redacted
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

WANTED_PAYLOAD_BYTES = 8 << 20
NOT_NAMED = "not looked at: no cluster runs here and {} is not set"
REDIS_URL = "MOONPOOL_REDIS_URL"


async def server_checks() -> list[Check]:
    target = find_target()
    if target is None or not target.nats_url:
        return [Check("NATS", NOT_NAMED.format("MOONPOOL_NATS_URL")), await _redis(None)]
    try:
        bus = await target.connect("doctor")
    except CommandError as error:
        problem = f"{error.message}: start it, or correct MOONPOOL_NATS_URL and the credentials"
        return [Check("NATS", redacted(target.nats_url), problem), await _redis(None)]
    try:
        return [await _nats(target, bus), await _redis(bus)]
    finally:
        await bus.close()


async def _nats(target: Target, bus: Bus) -> Check:
    # The first one meets what a new connection is still busy with.
    await bus.flush()
    started_s = monotonic_s()
    await bus.flush()
    # A flush is two pings.
    round_trip_ms = (monotonic_s() - started_s) / 2 * 1e3
    payload = bus.max_payload_bytes
    found = (
        f"{redacted(target.nats_url)}: NATS {bus.server_version}, {bus.num_servers} "
        f"server{'' if bus.num_servers == 1 else 's'}, round trip {round_trip_ms:.1f} ms, "
        f"messages of {payload >> 20} MB"
    )
    if payload < WANTED_PAYLOAD_BYTES:
        return Check("NATS", found, "set max_payload: 8MB there, else long prompts are refused")
    return Check("NATS", found)


async def _redis(bus: Bus | None) -> Check:
    """What the cache-indexes say of theirs; without any, whether somebody listens there."""
    told = [] if bus is None else await _told(bus)
    away = [name for name, is_up in told if not is_up]
    if away:
        return Check("Redis", f"{len(away)} of {len(told)} cache-indexes cannot reach it", _DO)
    if told:
        return Check("Redis", f"reached by {', '.join(name for name, _ in told)}")
    url = os.environ.get(REDIS_URL)
    if not url:
        return Check("Redis", NOT_NAMED.format(REDIS_URL))
    try:
        await check_redis(url)
    except LaunchError as error:
        return Check("Redis", redacted(url), f"{error.message}: {_DO}")
    return Check("Redis", f"{redacted(url)}: somebody listens there")


_DO = f"start it, or correct {REDIS_URL}; matches come from memory until then"


async def _told(bus: Bus) -> list[tuple[str, bool]]:
    asker = IndexAsker(bus)
    found = []
    for name in await asker.indexes():
        try:
            found.append((name, (await asker.stats(name)).is_redis_up))
        except ServiceError:
            found.append((name, False))
    return found
