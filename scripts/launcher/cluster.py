"""A whole cluster on this machine: its servers, its services, its folders, from start to end.

Used by `up`, by `demo` and by the tests. Enter and leave it in one task.
"""

import asyncio
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import httpx

from scripts.credentials.credential_set import DEFAULT_HOSTS, CredentialSet, find_set, make_set
from scripts.embedded.nats_server import NatsServer
from scripts.embedded.redis_server import RedisServer, check_redis
from scripts.launcher import readiness
from scripts.launcher.errors import LaunchError
from scripts.launcher.layout import Listening, Surroundings, specs_of
from scripts.launcher.options import ClusterOptions
from scripts.launcher.ports import HeldPort, reachable
from scripts.launcher.processes import Child, Exit, OnLine, ProcessSpec
from scripts.launcher.readiness import Readiness
from scripts.launcher.supervised import Supervised
from scripts.launcher.supervisor import RestartPolicy
from shared.messages import subjects
from shared.messages.reports import GatewayReport
from shared.runtime.bus import Bus, redacted
from shared.runtime.nats_access import NatsAccess
from shared.runtime.settings import CommonSettings, read_settings

READY_TIMEOUT_S = 180.0
CONNECT_TIMEOUT_S = 10.0
LOOK_INTERVAL_S = 0.2
SERVER_GRACE_S = 3.0
STOP_MARGIN_S = 7.0
"""On top of the drain: what a service may take to stop and to close its connection."""


class LocalCluster(Supervised):
    """`async with LocalCluster(options) as cluster: await cluster.wait_ready()`.

    Leaving it drains and ends every process and removes the run folder; logs are kept when the
    cluster failed, or when the options say so.
    """

    def __init__(
        self,
        options: ClusterOptions,
        *,
        on_line: OnLine = lambda _name, _line: None,
        on_death: Callable[[Exit], None] = lambda _end: None,
        restart_policy: RestartPolicy | None = None,
    ) -> None:
        super().__init__(options, on_line=on_line, on_death=on_death, restart_policy=restart_policy)
        self.admin_key = options.admin_key or secrets.token_urlsafe(24)
        self._servers: list[NatsServer | RedisServer] = []
        self._drained: set[str] = set()
        """Incarnations of gateways that said that they drain."""
        self.credentials: CredentialSet | None = None

    # --- what runs ---------------------------------------------------------------------------

    @property
    def nats_access(self) -> NatsAccess:
        """The operator's: may do everything on the bus."""
        if self.credentials is not None:
            return self.credentials.operator()
        return read_settings(CommonSettings).nats_access()

    @property
    def base_url(self) -> str:
        """Of the first gateway."""
        return self.base_urls[0]

    def process(self, name: str) -> Child:
        """The process that runs under this name now."""
        child = self._supervisor.child(name)
        if child is None:
            raise LaunchError(f"{name} does not run now")
        return child

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal a process; when it dies of it, it is started again."""
        self._supervisor.send_signal(name, number)

    async def stop(self, name: str) -> None:
        """End one process for good (`start_again` brings it back)."""
        await self._supervisor.stop([name], grace_s=self._grace_s)

    async def start_again(self, name: str) -> None:
        """Start a process that `stop` ended, with the same settings."""
        await self._supervisor.start(self._specs[name])

    async def restart(self, name: str) -> None:
        """A planned one; a gateway's successor takes its socket over. Returns when it has ended."""
        if name in self.names.gateways:
            await self._supervisor.replace(name)
            return
        await self.stop(name)
        await self.start_again(name)

    async def wait_ready(
        self,
        timeout_s: float = READY_TIMEOUT_S,
        *,
        on_progress: Callable[[Readiness], None] = lambda _seen: None,
    ) -> None:
        """Until every service that is wanted is ready; LaunchError when that cannot be."""
        seen = Readiness((), self.names.all)

        async def look_until_ready() -> None:
            nonlocal seen
            while True:
                wanted = [m for m in self.names.members if m.id in self._supervisor.names]
                # Without a node of its own no model is served before others join.
                urls = self.base_urls if self.options.nodes else []
                seen = await readiness.ask(self.bus, self._http, wanted, urls)
                on_progress(seen)
                if seen.is_ready:
                    return
                await asyncio.sleep(LOOK_INTERVAL_S)

        try:
            async with asyncio.timeout(timeout_s):
                await self._unless_given_up(look_until_ready())
        except TimeoutError:
            self.is_keeping_logs = True
            waiting = ", ".join(seen.waiting)
            raise LaunchError(
                f"not ready after {timeout_s:g} s, still waiting for: {waiting}",
                hint=f"the logs are in {self.folder.logs}",
            ) from None

    # --- from start to end -------------------------------------------------------------------

    async def _start(self) -> None:
        options = self.options
        ports = [
            HeldPort(options.host, options.port if index == 0 else 0, is_listening=True)
            for index in range(options.gateways)
        ]
        for port in ports:
            self._stack.callback(port.release)
        scheme = "http" if options.http_cert is None else "https"
        self.base_urls = [f"{scheme}://{reachable(options.host)}:{port.number}" for port in ports]
        self._take_folder(options.nodes * options.pool_bytes)
        await self._supervise()
        await self._start_servers()
        # Whether our own gateways are ready is asked on this machine: no name to verify.
        self._http = await self._stack.enter_async_context(
            httpx.AsyncClient(trust_env=False, verify=options.http_cert is None)
        )
        await self._connect_bus()
        gateways = subjects.report("gateway", "*")
        await self.bus.subscribe(gateways, GatewayReport, self._on_gateway)
        around = Surroundings(
            nats_url=self.nats_url,
            redis_url=self.redis_url,
            shared_dir=self.folder.shared_dir,
            admin_key=self.admin_key,
            gateway_sockets=tuple(Listening(port.number, port.fd) for port in ports),
            credentials=self.credentials,
        )
        self._specs |= {spec.name: spec for spec in specs_of(options, around)}
        for member in self.names.members:
            await self._supervisor.start(self._specs[member.id])

    async def _start_servers(self) -> None:
        self._specs: dict[str, ProcessSpec] = {}
        self.nats_url = self.options.nats_url or ""
        self.redis_url = self.options.redis_url or ""
        if self.options.credentials is not None:
            self.credentials = await asyncio.to_thread(find_set, self.options.credentials)
        elif not self.nats_url:
            # A Redis that is given has users of its own.
            folder, is_for_redis = self.folder.path / "credentials", not self.redis_url
            hosts = (*DEFAULT_HOSTS, self.options.nats_host)
            self.credentials = await asyncio.to_thread(
                make_set, folder, hosts=hosts, is_for_redis=is_for_redis
            )
        if not self.nats_url:
            nats = NatsServer(
                self.folder.path / "nats",
                self.credentials,
                host=self.options.nats_host,
                port=self.options.nats_port,
            )
            self.nats_url = nats.url
            await self._start_server(nats)
        if self.redis_url:
            await check_redis(self.redis_url)
        else:
            redis = RedisServer(self.folder.path / "redis", self.credentials)
            self.redis_url = redis.url
            await self._start_server(redis)

    async def _start_server(self, server: NatsServer | RedisServer) -> None:
        self._servers.append(server)
        self._specs[server.name] = server.spec
        await self._supervisor.start(server.spec)
        await self._unless_given_up(server.wait_ready())

    async def _connect_bus(self) -> None:
        self.bus = await connect(self.nats_url, "launcher", self.nats_access)
        self._stack.push_async_callback(self.bus.close)

    def _on_gateway(self, report: GatewayReport) -> None:
        """One that was told to drain, by whomever, makes way for its successor at once."""
        if report.state == "draining" and report.incarnation not in self._drained:
            self._drained.add(report.incarnation)
            if report.id in self.names.gateways:
                self._supervisor.hand_over(report.id)

    async def _stop_all(self) -> None:
        """Services drain while their servers still run; then the servers."""
        servers = {server.name for server in self._servers}
        services = [name for name in self._supervisor.names if name not in servers]
        await self._supervisor.stop(services, grace_s=self._grace_s)
        await self._supervisor.stop(self._supervisor.names, grace_s=SERVER_GRACE_S)
        for server in self._servers:
            server.close()

    def kill_all(self, names: Iterable[str] | None = None) -> None:
        """SIGKILL for everything at once; leaving the context still cleans up."""
        self._supervisor.kill(self._supervisor.names if names is None else names)

    @property
    def _grace_s(self) -> float:
        return self.options.drain_timeout_s + STOP_MARGIN_S

    async def _unless_given_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`; raises when a process does not stay up meanwhile."""
        failure: LaunchError | None = None
        async with asyncio.TaskGroup() as group:
            given_up = group.create_task(self.wait_failed())
            task = group.create_task(work)
            await asyncio.wait({given_up, task}, return_when=asyncio.FIRST_COMPLETED)
            if given_up.done() and not given_up.cancelled():
                failure = given_up.result()
            given_up.cancel()
            if failure is not None:
                task.cancel()
        if failure is not None:
            raise LaunchError(failure.message, hint=f"the logs are in {self.folder.logs}")


async def connect(url: str, name: str, access: NatsAccess) -> Bus:
    """LaunchError when no NATS answers there."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await Bus.connect(url, name=name, access=access)
    except (TimeoutError, OSError):
        raise LaunchError(
            f"no NATS answers at {redacted(url)}",
            hint="check --nats / MOONPOOL_NATS_URL and the credentials",
        ) from None
