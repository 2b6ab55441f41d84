"""docs/metrics.md has every metric with its type and labels, and none that is not there."""

import re
from pathlib import Path

from shared.telemetry import metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(moonpool_\w+)` \| (\w+) \|([\w, ]*)\| (.+) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[str, tuple[str, ...]]]:
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, kind, labels, _ in ROW.findall(PAGE.read_text()):
        assert name not in found, f"{name} is there twice"
        found[name] = (kind, tuple(label.strip() for label in labels.split(",") if label.strip()))
    return found


def test_the_page_has_exactly_what_is_declared() -> None:
    declared = {
        metric.name: (metric.kind, metric.labels)
        for metric in metrics.of_services(metrics.OF_SERVICE)
    }
    assert rows() == declared


def test_metric_names_stand_in_one_file_only() -> None:
    names = {metric.name for metric in metrics.of_services(metrics.OF_SERVICE)}
    home = ROOT / "shared" / "telemetry" / "metrics.py"
    for folder in ("services", "shared", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != home:
                written = set(re.findall(r"\bmoonpool_\w+", path.read_text()))
                assert not written & names, f"{path.relative_to(ROOT)} names a metric"
