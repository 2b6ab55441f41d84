"""Dashboards, rules and scrape configuration ask for metrics that are declared, with labels that
they have; promtool finds nothing wrong."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.telemetry import metrics
from shared.telemetry.metric import Metric

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "observability"
DASHBOARDS = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
DECLARED = {metric.name: metric for metric in metrics.of_services(metrics.OF_SERVICE)}
SELECTOR = re.compile(r"\b(moonpool_\w+)(?:\{([^}]*)\})?")
PANEL_TYPES = {"timeseries", "stat", "gauge", "bargauge", "table", "heatmap", "barchart"}
TARGET_LABELS = {"instance", "job", "service_name"}
"""Those that Prometheus itself puts on every series."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
    for rule in rules():
        yield f"rules.yaml: {rule.get('alert') or rule['record']}", rule["expr"]


def declared(name: str) -> Metric | None:
    """The metric of a series: histograms have three kinds of them."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = DECLARED.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base is not None and base.kind == "histogram":
            return base
    found = DECLARED.get(name)
    return None if found is None or found.kind == "histogram" else found


def test_there_are_dashboards() -> None:
    assert [path.name for path in DASHBOARDS] == ["cluster.json", "requests.json"]
    uids = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert len(set(uids)) == len(uids)


def test_every_query_asks_for_declared_metrics_and_their_labels() -> None:
    for where, expression in queries():
        for name, selector in SELECTOR.findall(expression):
            metric = declared(name)
            assert metric is not None, f"{where}: {name} is not declared"
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert asked <= {*metric.labels, "le", *TARGET_LABELS}, f"{where}: {name}"


def test_grouping_uses_labels_of_the_metric() -> None:
    for where, expression in queries():
        series = [declared(name) for name, _ in SELECTOR.findall(expression)]
        known = {label for metric in series if metric is not None for label in metric.labels}
        for grouped in re.findall(r"\b(?:by|without|ignoring|on) \(([^)]*)\)", expression):
            labels = {label.strip() for label in grouped.split(",")}
            assert labels <= known | {"le"} | TARGET_LABELS, f"{where}: {grouped}"


def test_panels_of_a_dashboard_do_not_lie_on_one_another() -> None:
    for path in DASHBOARDS:
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24


def test_prometheus_scrapes_every_service_of_the_compose_file() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert set(found["names"]) == set(metrics.OF_SERVICE) - {"common"}
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    for name in found["names"]:
        environment = compose["services"][name]["environment"]
        assert environment["MOONPOOL_METRICS_PORT"] == found["port"], name
        assert environment["MOONPOOL_METRICS_HOST"] == "0.0.0.0", name


def test_files_that_compose_mounts_are_there() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    profile = {
        name: service
        for name, service in compose["services"].items()
        if "observability" in service.get("profiles", [])
    }
    assert set(profile) == {"prometheus", "grafana", "collector"}
    for name, service in profile.items():
        mounted = [volume.split(":")[0] for volume in service["volumes"]]
        files = [path for path in mounted if path.startswith("./")]
        assert files, name
        assert all((ROOT / path).exists() for path in files), name


def test_the_collector_names_only_parts_that_it_defines() -> None:
    config = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in config["service"]["pipelines"].values():
        for kind, names in used.items():
            names.update(pipeline.get(kind, []))
    assert {kind: set(config[kind]) for kind in used} == used
    # Where compose.yaml says that spans go.
    endpoint = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert f"http://collector:{endpoint.rpartition(':')[2]}" in (ROOT / "compose.yaml").read_text()


def test_grafana_asks_the_prometheus_of_the_compose_file() -> None:
    provisioning = FOLDER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert compose[host]["ports"][0].rpartition(":")[2] == port
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "moonpool.yaml").read_text())[
        "providers"
    ]
    mounted = {one.split(":")[1]: one.split(":")[0] for one in compose["grafana"]["volumes"]}
    assert mounted[provider["options"]["path"]] == "./docs/observability/grafana/dashboards"
    assert mounted["/etc/grafana/provisioning"] == "./docs/observability/grafana/provisioning"
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            assert panel["datasource"]["uid"] == source["uid"], f"{path.name}: {panel['title']}"
            assert panel["type"] in PANEL_TYPES, f"{path.name}: {panel['title']}"


def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    text = (FOLDER / "prometheus.yaml").read_text()
    config = tmp_path / "prometheus.yaml"
    config.write_text(text.replace("/etc/prometheus/rules.yaml", str(FOLDER / "rules.yaml")))
    for command in (["check", "config", config], ["check", "rules", FOLDER / "rules.yaml"]):
        done = subprocess.run([tool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
