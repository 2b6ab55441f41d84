"""docs/kubernetes: each manifest as the API has it, and as compose.yaml and the code say."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from services.cache_index.settings import CacheIndexSettings
from services.conductor.settings import ConductorSettings
from services.gateway.settings import GatewaySettings
from services.transfer.settings import TransferSettings
from shared.messages.access import SERVICES
from shared.runtime.lifecycle import STOP_TIMEOUT_S
from shared.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "kubernetes"
VERSIONS = ("1.29.0", kubernetes_validate.latest_version())
SETTINGS: dict[str, type[Any]] = {
    "gateway": GatewaySettings,
    "conductor": ConductorSettings,
    "cache-index": CacheIndexSettings,
    "transfer": TransferSettings,
    "prefill": WorkerSettings,
    "decode": WorkerSettings,
}
OF_LIBRARIES = ("OMP_", "MKL_", "MALLOC_")
DEFAULT = re.compile(r"^\$\{\w+:-(.*)\}$")
"""A variable of compose with what it is when nobody sets it."""
READ_ELSEWHERE = {"MOONPOOL_SECRETS_DIR"}


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


MANIFESTS = [
    (path.name, one)
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for one in documents(path)
]
CONFIG_MAPS = {
    one["metadata"]["name"]: one["data"] for _, one in MANIFESTS if one["kind"] == "ConfigMap"
}
WORKLOADS = {
    one["metadata"]["name"]: one
    for _, one in MANIFESTS
    if one["kind"] in ("Deployment", "DaemonSet")
}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifest", [one for _, one in MANIFESTS], ids=[f"{name}" for name, _ in MANIFESTS]
)
def test_a_manifest_is_as_the_api_has_it(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_validation_can_fail() -> None:
    wrong = {**WORKLOADS["conductor"], "spec": {**WORKLOADS["conductor"]["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_manifest_is_applied() -> None:
    listed = documents(FOLDER / "kustomization.yaml")[0]["resources"]
    assert set(listed) == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}


def test_every_service_is_there_and_transfer_is_on_each_node() -> None:
    assert set(WORKLOADS) == {*SERVICES, "nats", "redis"}
    assert WORKLOADS["transfer"]["kind"] == "DaemonSet"
    where = [pod_of(name)["nodeSelector"] for name in ("transfer", "prefill", "decode")]
    assert where[0] == where[1] == where[2]


def pod_of(name: str) -> dict[str, Any]:
    return dict(WORKLOADS[name]["spec"]["template"]["spec"])


def container_of(name: str) -> dict[str, Any]:
    return dict(pod_of(name)["containers"][0])


def environment_of(name: str) -> dict[str, str]:
    container = container_of(name)
    maps = [CONFIG_MAPS[one["configMapRef"]["name"]] for one in container["envFrom"]]
    own = {one["name"]: one.get("value", "from the pod") for one in container.get("env", [])}
    return {name: value for each in (*maps, own) for name, value in each.items()}


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_is_one_that_the_service_reads(name: str) -> None:
    known = {f"MOONPOOL_{field.upper()}" for field in SETTINGS[name].model_fields}
    given = environment_of(name)
    ours = {variable for variable in given if not variable.startswith(OF_LIBRARIES)}
    assert ours - READ_ELSEWHERE <= known
    assert {"MOONPOOL_NATS_URL", "MOONPOOL_NATS_CA", "MOONPOOL_SECRETS_DIR"} <= ours


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_as_it_does_under_compose(name: str) -> None:
    container, pod, composed = container_of(name), pod_of(name), COMPOSE[name]
    assert container["command"] == composed["command"]
    assert container["image"] == composed["image"]
    given, under_compose = environment_of(name), composed["environment"]
    for variable in ("MOONPOOL_NATS_URL", "MOONPOOL_SECRETS_DIR", "MOONPOOL_NATS_CA"):
        assert given[variable] == DEFAULT.sub(r"\1", under_compose[variable])
    if name == "cache-index":
        assert given["MOONPOOL_REDIS_URL"] == under_compose["MOONPOOL_REDIS_URL"]
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    shared = {one.split(":")[1] for one in composed["volumes"]} - {"/var/lib/moonpool/ssd"}
    assert shared <= mounted
    secrets = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
    assert secrets == [f"moonpool-{name}"], "a pod sees the secret of its own service alone"
    grace_s = int(composed.get("stop_grace_period", "30s").removesuffix("s"))
    for told, most_s in ((given, pod["terminationGracePeriodSeconds"]), (under_compose, grace_s)):
        drain_s = float(told.get("MOONPOOL_DRAIN_TIMEOUT_S", SETTINGS[name]().drain_timeout_s))
        assert most_s >= drain_s + 3 * STOP_TIMEOUT_S


@pytest.mark.parametrize("name", [*SERVICES, "nats", "redis"])
def test_a_pod_may_do_little(name: str) -> None:
    pod, container = pod_of(name), container_of(name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert "readinessProbe" in container


def test_ports_and_services_fit() -> None:
    for _, service in [one for one in MANIFESTS if one[1]["kind"] == "Service"]:
        target = WORKLOADS[service["spec"]["selector"]["app"]]
        ports = {
            port["name"]: port["containerPort"]
            for container in target["spec"]["template"]["spec"]["containers"]
            for port in container["ports"]
        }
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    kv = environment_of("transfer")["MOONPOOL_TCP_PORTS"]
    assert [port["containerPort"] for port in container_of("transfer")["ports"]] == [int(kv)]
