"""compose.yaml for real: from a clean clone to an answer, scaled and killed under load."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from services.gateway.settings import GatewaySettings
from shared.runtime.lifecycle import STOP_TIMEOUT_S
from tests.support.cluster import HostedCluster
from tests.support.compose_project import (
    SERVICES,
    ComposeProject,
    dummy_project,
    skip_without_compose,
    under_load,
)
from tests.support.deadline import wait_until
from tests.support.load import Load

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2_400)]
LARGE = {"prefill": 3, "decode": 2, "transfer": 2, "conductor": 2, "cache_index": 2}
SMALL = dict.fromkeys(LARGE, 1)
SERVERS = ("nats", "redis")
MADE_ONCE = "credentials"
"""Its container ends each time, having found that it is done."""
OWN_USER, ONE_GB = "moonpool", 1e9


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    """One container of each service, with the tiny dummy model."""
    with dummy_project(tmp_path_factory.mktemp("compose")) as project:
        yield project


def test_from_a_clean_clone_to_the_first_answer_of_the_real_model(tmp_path: Path) -> None:
    skip_without_compose()
    start_s = time.monotonic()
    with ComposeProject(tmp_path) as project:
        project.start()
        up_s = time.monotonic() - start_s
        body = {
            "model": "SmolLM2-135M-Instruct",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 12,
            "temperature": 0,
        }
        url = f"{project.base_url}/v1/chat/completions"
        answer = httpx.post(url, json=body, timeout=300, trust_env=False)
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        print(f"\nup after {up_s:.0f} s, answer after {time.monotonic() - start_s:.0f} s: {text!r}")
        for image in ("moonpool-control", "moonpool-engine"):
            print(f"{image}: {size_of(project, image) / 1e6:.0f} MB")
    assert "Paris" in text


def size_of(project: ComposeProject, image: str) -> int:
    """Bytes, with its base image."""
    return int(project.docker("image", "inspect", "--format", "{{.Size}}", image))


def test_the_control_image_has_no_torch(project: ComposeProject) -> None:
    look = "import importlib.util as i; print(i.find_spec('torch') is not None)"
    for image, has_torch in (("moonpool-control", "False"), ("moonpool-engine", "True")):
        said = project.docker("run", "--rm", "--network", "none", image, "python", "-c", look)
        assert said.strip() == has_torch
    assert size_of(project, "moonpool-control") < ONE_GB


@pytest.mark.parametrize("service", [*SERVICES, *SERVERS])
def test_a_container_may_do_little(project: ComposeProject, service: str) -> None:
    for one in project.containers(service):
        host, config = one["HostConfig"], one["Config"]
        assert config["User"] not in ("", "root", "0", "0:0")
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert not host["Privileged"]
        assert one["State"]["Health"]["Status"] == "healthy"
        published = [bound for bound in (host["PortBindings"] or {}).values() if bound]
        assert bool(published) == (service == "gateway")
        if service in SERVICES:
            # A variable that compose passes on and that is not set has no "=".
            parts = (pair.partition("=") for pair in config["Env"])
            told = {name: value for name, _, value in parts}
            usual_s = GatewaySettings().drain_timeout_s
            drain_s = float(told.get("MOONPOOL_DRAIN_TIMEOUT_S", usual_s))
            assert config["StopTimeout"] >= drain_s + 3 * STOP_TIMEOUT_S


@pytest.fixture(scope="module")
def load(project: ComposeProject) -> Load:
    return Load(cast(HostedCluster, project))


def numbers(project: ComposeProject) -> dict[str, int]:
    return {name: len(project.containers(name)) for name in SERVICES}


def test_scaling_up_and_down_under_load_loses_no_request(
    project: ComposeProject, load: Load
) -> None:
    more = under_load(project, load, lambda: project.up(**LARGE))
    assert numbers(project) == {"gateway": 1} | {
        name.replace("_", "-"): count for name, count in LARGE.items()
    }
    started_s = time.time()
    fewer = under_load(project, load, lambda: project.up(**SMALL))
    assert set(numbers(project).values()) == {1}
    # They were told to drain and were not killed: each ended by itself, with nothing wrong.
    ends = {name: code for name, code in project.ends(started_s).items() if MADE_ONCE not in name}
    assert len(ends) == sum(LARGE.values()) - sum(SMALL.values())
    assert set(ends.values()) == {0}, ends
    print(f"\nright answers: {more.num_right} scaling up, {fewer.num_right} scaling down")


def test_a_process_that_hangs_makes_its_container_unhealthy(project: ComposeProject) -> None:
    (container,) = project.containers("conductor")

    def is_unhealthy() -> bool:
        return project.unhealthy().get(container["Name"]) == "unhealthy"

    project.signal("conductor", "SIGSTOP")
    try:
        wait_until(is_unhealthy, timeout_s=180, what="it is unhealthy")
    finally:
        project.signal("conductor", "SIGCONT")
    project.wait_healthy()


@pytest.mark.parametrize("service", ["prefill", "decode"])
def test_a_killed_worker_under_load_loses_no_request(
    project: ComposeProject, load: Load, service: str
) -> None:
    project.up(**(SMALL | {service: 2}))

    def kill() -> None:
        project.docker("kill", project.containers(service)[0]["Id"])

    outcomes = under_load(project, load, kill, after_s=6.0)
    print(f"\nright answers: {outcomes.num_right}")
    project.up(**(SMALL | {service: 2}))
    assert len(project.containers(service)) == 2


def test_prometheus_finds_every_container_of_ours(project: ComposeProject) -> None:
    image = "prom/prometheus"
    if image not in project.docker("images", "--format", "{{.Repository}}").splitlines():
        pytest.skip(f"the image {image} is not here")
    project.up(**(SMALL | {"prefill": 2}))
    project.compose("up", "-d", "--no-recreate", "prometheus")
    url = f"http://{project.compose('port', 'prometheus', '9090').strip()}/api/v1/query"

    def scraped() -> Counter[str]:
        try:
            answer = httpx.get(url, params={"query": "up == 1"}, timeout=10, trust_env=False).json()
        except (httpx.HTTPError, ValueError):
            return Counter()
        return Counter(one["metric"]["service_name"] for one in answer["data"]["result"])

    wanted = Counter({name: 1 + (name == "prefill") for name in SERVICES})
    wait_until(lambda: scraped() == wanted, timeout_s=120, what=f"all are scraped: {scraped()}")
