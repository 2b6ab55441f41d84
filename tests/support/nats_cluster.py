"""Three NATS servers that are one cluster, told by the configuration that compose.yaml mounts."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.credentials.credential_set import CredentialSet
from scripts.embedded.nats_server import HOST, NatsServer
from scripts.launcher.ports import HeldPort
from scripts.launcher.processes import ProcessSpec
from tests.support.servers import TestServer

CONFIG = Path(__file__).parents[2] / "services" / "nats.conf"
NUM_SERVERS = 3
CREDENTIALS = "/etc/moonpool/credentials"


class NatsMember(NatsServer):
    """One of them; `routes` are the ports of those that it looks for."""

    def __init__(
        self, folder: Path, credentials: CredentialSet, port: HeldPort, routes: Sequence[int]
    ) -> None:
        super().__init__(folder, credentials)
        self._route, self._routes = port, routes
        (folder / "credentials").symlink_to(credentials.nats_folder)
        text = CONFIG.read_text().replace(CREDENTIALS, str(folder / "credentials"))
        for old, new in (
            (r"^port: 4222$", f"port: {self._port.number}"),
            (r"^http: .*$", f'http: "{HOST}:-1"'),
            (r"^  port: 6222$", f"  port: {port.number}"),
        ):
            text, found = re.subn(old, new, text, flags=re.MULTILINE)
            assert found == 1, old
        self._config.write_text(text)

    @property
    def spec(self) -> ProcessSpec:
        advertised = (
            *("--client_advertise", f"{HOST}:{self._port.number}"),
            *("--cluster_advertise", f"{HOST}:{self._route.number}"),
        )
        routes = ",".join(f"nats://{HOST}:{port}" for port in self._routes)
        looks = ("--routes", routes) if routes else ()
        own = super().spec
        return ProcessSpec(name=self.name, argv=(*own.argv, *advertised, *looks), is_quiet=True)

    @property
    def route_url(self) -> str:
        """Where servers of its cluster reach it."""
        return f"nats://{HOST}:{self._route.number}"

    def close(self) -> None:
        super().close()
        self._route.release()


@contextmanager
def nats_cluster(folder: Path, credentials: CredentialSet) -> Iterator[list[TestServer]]:
    """As in compose.yaml: the first looks for nobody, the others for all."""
    ports = [HeldPort(HOST) for _ in range(NUM_SERVERS)]
    numbers = [port.number for port in ports]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                TestServer(
                    NatsMember(folder / str(number), credentials, port, numbers if number else ()),
                    folder / f"{number}.log",
                )
            )
            for number, port in enumerate(ports)
        ]


def url_of(servers: Sequence[TestServer]) -> str:
    """What MOONPOOL_NATS_URL is told."""
    return ",".join(server.url for server in servers)
