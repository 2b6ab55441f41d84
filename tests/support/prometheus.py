"""A real Prometheus with the project's own rules, and its scrape settings for fixed addresses."""

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import yaml

from scripts.embedded.nats_server import HOST
from scripts.launcher.ports import HeldPort
from scripts.launcher.processes import PR_SET_PDEATHSIG
from tests.support.deadline import wait_until
from tests.support.servers import _libc

FOLDER = Path(__file__).parents[2] / "docs" / "observability"
DASHBOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
SCRAPE = "1s"
RATE = "15s"
VARIABLES = {"$__rate_interval": RATE, "$instance": ".*", "$model": ".*"}


def dashboard_queries() -> dict[str, str]:
    """Every query of our dashboards as Grafana would send it, by panel and number."""
    found = {}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for number, target in enumerate(panel["targets"]):
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                found[f"{panel['title']}: {number}"] = query
    return found


class Prometheus:
    """Scrapes `targets` (host:port, with the name of its service) as the job of our file."""

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            pytest.skip("there is no prometheus (Debian: apt-get install prometheus)")
        config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
        config["global"] |= {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE}
        config["global"]["evaluation_interval"] = SCRAPE
        config["rule_files"] = [str(FOLDER / "rules.yaml")]
        (job,) = config["scrape_configs"]
        # Names of containers are asked for in DNS there; here each address is known.
        del job["dns_sd_configs"], job["relabel_configs"]
        job["static_configs"] = [
            {"targets": [target], "labels": {"service_name": service}}
            for target, service in targets.items()
        ]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._port = HeldPort(HOST)
        self.url = f"http://{HOST}:{self._port.number}"
        self._folder = folder
        self._argv = [
            binary,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{self._port.number}",
        ]

    def __enter__(self) -> Self:
        # It binds without SO_REUSEADDR: the port is given up just before.
        self._port.release()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        try:
            wait_until(self._is_ready, timeout_s=30, what="Prometheus is ready")
        except AssertionError:
            self.__exit__()
            raise AssertionError((self._folder / "log").read_text()) from None
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives now; it must be one that Prometheus can answer."""
        answer = self._get("query", query=query)
        assert answer["status"] == "success", f"{query}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["data"]["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"{self.url}/api/v1/{path}"
        answer: dict[str, Any] = httpx.get(
            url, params=parameters, timeout=30, trust_env=False
        ).json()
        return answer

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
