"""What a scrape says, by metric and labels."""

import math

from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry.metric import Metric


class Scrape:
    """One answer of /metrics. A series that is there twice is an error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str] = {}
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.kinds[name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self._values, f"{key} is there twice"
                self._values[key] = sample.value

    def value(self, metric: Metric, **labels: str) -> float:
        """Of a counter or gauge; 0 for a series that is not there."""
        return self._named(metric.name, labels)

    def total(self, metric: Metric, **labels: str) -> float:
        """Over all series with these labels."""
        wanted = set(labels.items())
        found = [v for (n, have), v in self._values.items() if n == metric.name and wanted <= have]
        return math.fsum(found)

    def count(self, metric: Metric, **labels: str) -> float:
        return self._named(f"{metric.name}_count", labels)

    def sum(self, metric: Metric, **labels: str) -> float:
        return self._named(f"{metric.name}_sum", labels)

    def bucket(self, metric: Metric, bound: str, **labels: str) -> float:
        return self._named(f"{metric.name}_bucket", {**labels, "le": bound})

    def labels_of(self, metric: Metric) -> set[str]:
        """Names of labels that its series have, without a histogram's own."""
        names = (metric.name, f"{metric.name}_bucket")
        found = {label for (n, have), _ in self._values.items() if n in names for label, _ in have}
        return found - {"le"}

    def _named(self, name: str, labels: dict[str, str]) -> float:
        return self._values.get((name, frozenset(labels.items())), 0.0)
