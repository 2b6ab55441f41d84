"""kubectl's own dry run of docs/kubernetes, at a server that only tells kinds."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[3] / "docs" / "kubernetes"
TIMEOUT_S = 60


def resource(name: str, kind: str, *, is_namespaced: bool = True) -> dict[str, Any]:
    verbs = ["create", "get", "list"]
    return {
        "name": name, "singularName": "", "namespaced": is_namespaced, "kind": kind, "verbs": verbs
    }  # fmt: skip


APPS = {"groupVersion": "apps/v1", "version": "v1"}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "apps", "versions": [APPS], "preferredVersion": APPS}],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            resource("namespaces", "Namespace", is_namespaced=False),
            resource("configmaps", "ConfigMap"),
            resource("services", "Service"),
        ],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "apps/v1",
        "resources": [resource("deployments", "Deployment"), resource("daemonsets", "DaemonSet")],
    },
}


class Discovery(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = DISCOVERY.get(self.path.partition("?")[0])
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Discovery) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def dry_run(folder: Path, api: str, home: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    options = ("--dry-run=client", "--validate=false", "-o", "name", "--server", api)
    return subprocess.run(
        ["kubectl", "create", "-k", str(folder), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(home), "KUBECONFIG": ""},
        timeout=TIMEOUT_S,
        check=False,
    )


def test_kubectl_would_create_every_manifest(api: str, tmp_path: Path) -> None:
    done = dry_run(FOLDER, api, tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = set()
    for path in FOLDER.glob("*.yaml"):
        if path.name == "kustomization.yaml":
            continue
        for one in yaml.safe_load_all(path.read_text()):
            group, _, _ = one["apiVersion"].rpartition("/")
            kind = one["kind"].lower() + (f".{group}" if group else "")
            wanted.add(f"{kind}/{one['metadata']['name']}")
    assert set(done.stdout.split()) == wanted


def test_a_kind_that_the_api_has_not_is_refused(api: str, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    shutil.copytree(FOLDER, folder)
    gateway = folder / "gateway.yaml"
    gateway.write_text(gateway.read_text().replace("kind: Deployment", "kind: Deploiment"))
    done = dry_run(folder, api, tmp_path)
    assert done.returncode != 0
    assert "Deploiment" in done.stderr
