"""The profile `nats-cluster`: three servers, of which any may go under load."""

from collections.abc import Iterator
from typing import cast

import pytest

from tests.support.cluster import HostedCluster
from tests.support.compose_project import ComposeProject, dummy_project, under_load
from tests.support.load import Load

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2_400)]
SERVERS = ("nats", "nats-2", "nats-3")
URL = ",".join(f"nats://{name}:4222" for name in SERVERS)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    folder = tmp_path_factory.mktemp("compose")
    with dummy_project(
        folder, COMPOSE_PROFILES="nats-cluster", MOONPOOL_COMPOSE_NATS_URL=URL
    ) as project:
        yield project


@pytest.fixture(scope="module")
def load(project: ComposeProject) -> Load:
    return Load(cast(HostedCluster, project))


@pytest.mark.parametrize("server", SERVERS)
def test_a_nats_server_killed_under_load_loses_no_request(
    project: ComposeProject, load: Load, server: str
) -> None:
    def kill() -> None:
        project.docker("kill", project.containers(server)[0]["Id"])

    outcomes = under_load(project, load, kill, after_s=6.0)
    print(f"\n{server} killed: {outcomes.num_right} right answers")
    project.up()
    assert len(project.containers(server)) == 1
