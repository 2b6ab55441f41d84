"""`python -m shared.runtime.healthcheck`: exit 0 when the process of this container is ready.

It asks over NATS, so that it sees what the cluster sees: the process, its loop and its connection.
"""

import asyncio
import sys

from shared.messages import subjects
from shared.messages.reports import PingReply
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.runtime.lifecycle import PingRequest
from shared.runtime.settings import CommonSettings, read_settings

TIMEOUT_S = 4.0


async def check(settings: CommonSettings) -> str:
    """Empty when ready, else what is wrong."""
    if settings.health_file is None or not settings.health_file.exists():
        return "the service has not started yet (no MOONPOOL_HEALTH_FILE)"
    service, instance_id = settings.health_file.read_text().split()
    async with asyncio.timeout(TIMEOUT_S):
        access = settings.nats_access()
        bus = await Bus.connect(settings.nats_url, name="healthcheck", access=access)
        try:
            reply = await bus.request(
                subjects.ping(service, instance_id), PingRequest(), PingReply, timeout_s=2.0
            )
        finally:
            await bus.close()
    return "" if reply.state == "ready" else f"{instance_id} is {reply.state}"


def main() -> None:
    try:
        problem = asyncio.run(check(read_settings(CommonSettings)))
    except (ServiceError, TimeoutError, OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
    if problem:
        sys.stderr.write(f"not healthy: {problem}\n")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
