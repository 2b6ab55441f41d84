"""Makes one cluster of servers that run already. Starts nothing itself."""

import time
from collections.abc import Sequence
from typing import Any

import redis

from scripts.embedded.redis_server import RedisServer
from scripts.launcher.errors import LaunchError

NUM_SLOTS = 16_384
LOOK_AGAIN_S = 0.05


def form_cluster(servers: Sequence[RedisServer], *, timeout_s: float = 20.0) -> None:
    """Every server becomes a master of an equal part of the slots; returns when all agree."""
    clients: list[Any] = [
        redis.Redis.from_url(server.url, decode_responses=True) for server in servers
    ]
    try:
        for number, client in enumerate(clients):
            first = number * NUM_SLOTS // len(clients)
            last = (number + 1) * NUM_SLOTS // len(clients) - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        host, _, port = servers[0].url.rpartition("/")[0].rpartition("//")[2].partition(":")
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", host, port, servers[0].cluster_port)
        deadline_s = time.monotonic() + timeout_s
        while not all(_is_whole(client, len(clients)) for client in clients):
            if time.monotonic() > deadline_s:
                raise LaunchError(f"the servers formed no cluster within {timeout_s:g} s")
            time.sleep(LOOK_AGAIN_S)
    finally:
        for client in clients:
            client.close()


def _is_whole(client: Any, num_masters: int) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    known = (
        info
        if isinstance(info, dict)
        else dict(line.split(":", 1) for line in str(info).split() if ":" in line)
    )
    state, size = known.get("cluster_state"), known.get("cluster_size")
    slots = known.get("cluster_slots_ok")
    return state == "ok" and int(size or 0) == num_masters and int(slots or 0) == NUM_SLOTS
