"""One node of a cluster that runs elsewhere: its transfer and workers on this host, supervised.

It needs the cluster's NATS and the users of its three services. Enter and leave it in one task.
"""

import asyncio
from collections.abc import Callable

from scripts.credentials.credential_set import CredentialSet, find_set
from scripts.launcher import readiness
from scripts.launcher.cluster import (
    LOOK_INTERVAL_S,
    READY_TIMEOUT_S,
    SERVER_GRACE_S,
    STOP_MARGIN_S,
    connect,
)
from scripts.launcher.errors import LaunchError
from scripts.launcher.layout import Surroundings, specs_of
from scripts.launcher.options import ClusterOptions
from scripts.launcher.processes import Exit, OnLine
from scripts.launcher.readiness import Member, Readiness
from scripts.launcher.supervised import Supervised
from shared.runtime.bus import Bus
from shared.runtime.nats_access import NatsAccess
from shared.runtime.settings import CommonSettings, read_settings


class JoinedNode(Supervised):
    """`options` name the node and the NATS; they have no gateway, conductor or cache-index."""

    def __init__(
        self,
        options: ClusterOptions,
        *,
        on_line: OnLine = lambda _name, _line: None,
        on_death: Callable[[Exit], None] = lambda _end: None,
    ) -> None:
        super().__init__(options, on_line=on_line, on_death=on_death)
        assert options.nats_url is not None, "a node that joins is told where"
        self.nats_url = options.nats_url
        self._credentials: CredentialSet | None = None
        self._buses: dict[str, Bus] = {}

    async def wait_ready(
        self,
        timeout_s: float = READY_TIMEOUT_S,
        *,
        on_progress: Callable[[Readiness], None] = lambda _seen: None,
    ) -> None:
        """Until all its processes say that they are ready; LaunchError when that cannot be."""
        async with asyncio.TaskGroup() as group:
            given_up = group.create_task(self.wait_failed())
            looking = group.create_task(self._look_until_ready(timeout_s, on_progress))
            await asyncio.wait({given_up, looking}, return_when=asyncio.FIRST_COMPLETED)
            failure = given_up.result() if given_up.done() else None
            waiting = looking.result() if failure is None else ()
            given_up.cancel()
            looking.cancel()
        hint = f"the logs are in {self.folder.logs}"
        if failure is not None:
            raise LaunchError(failure.message, hint=hint)
        if waiting:
            self.is_keeping_logs = True
            raise LaunchError(
                f"not ready after {timeout_s:g} s, still waiting for: {', '.join(waiting)}",
                hint=hint,
            )

    def kill_all(self) -> None:
        """SIGKILL for everything at once; leaving the context still cleans up."""
        self._supervisor.kill(self._supervisor.names)

    async def _start(self) -> None:
        options = self.options
        if options.credentials is not None:
            self._credentials = await asyncio.to_thread(find_set, options.credentials)
        self._take_folder(options.pool_bytes)
        for service in dict.fromkeys(member.service for member in self.names.members):
            bus = await connect(self.nats_url, f"launcher-{service}", self._access(service))
            self._buses[service] = bus
            self._stack.push_async_callback(bus.close)
        await self._supervise()
        around = Surroundings(
            nats_url=self.nats_url,
            redis_url="",
            shared_dir=self.folder.shared_dir,
            admin_key="",
            gateway_sockets=(),
            credentials=self._credentials,
        )
        for spec in specs_of(options, around):
            await self._supervisor.start(spec)

    def _access(self, service: str) -> NatsAccess:
        """A process asks about itself with its own user: no other is needed on this host."""
        if self._credentials is not None:
            return self._credentials.access(service)
        return read_settings(CommonSettings).nats_access()

    async def _look_until_ready(
        self, timeout_s: float, on_progress: Callable[[Readiness], None]
    ) -> tuple[str, ...]:
        """Who is still waited for when the time is over; nobody when all are ready."""
        seen = Readiness((), self.names.all)
        try:
            async with asyncio.timeout(timeout_s):
                while not seen.is_ready:
                    seen = await self._look()
                    on_progress(seen)
                    await asyncio.sleep(LOOK_INTERVAL_S)
        except TimeoutError:
            return seen.waiting
        return ()

    async def _look(self) -> Readiness:
        members = self.names.members
        ready = await asyncio.gather(*(self._is_ready(member) for member in members))
        found = list(zip(members, ready, strict=True))
        return Readiness(
            tuple(member.id for member, is_ready in found if is_ready),
            tuple(member.id for member, is_ready in found if not is_ready),
        )

    async def _is_ready(self, member: Member) -> bool:
        answer = await readiness.ping(self._buses[member.service], member)
        return answer is not None and answer.state == "ready"

    async def _stop_all(self) -> None:
        """Workers drain while their pool is still there; then it hands over what is hot."""
        grace_s = self.options.drain_timeout_s + STOP_MARGIN_S
        pools = set(self.names.nodes)
        workers = [name for name in self._supervisor.names if name not in pools]
        await self._supervisor.stop(workers, grace_s=grace_s)
        await self._supervisor.stop(self._supervisor.names, grace_s=grace_s + SERVER_GRACE_S)
