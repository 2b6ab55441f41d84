"""All metrics of one process: asks their sources when it is scraped, writes Prometheus' text.

Metrics are a view: a source reads numbers that its service keeps anyway. Everything runs on the
loop of the process, so that a scrape sees one moment.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from shared.telemetry import metrics
from shared.telemetry.metric import Distribution, Metric, Reading

Source = Callable[[], Iterable[Reading]]


class Meters(Collector):
    """Owns the sources. Families of a service are there from its first source on, also when
    nothing has happened yet."""

    def __init__(self) -> None:
        self._sources: dict[object, tuple[str, Source]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def add(self, service: str, source: Source) -> Callable[[], None]:
        """Ask `source` at every scrape, until the returned function is called."""
        key = object()
        self._sources[key] = (service, source)

        def remove() -> None:
            self._sources.pop(key, None)

        return remove

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The body for a scraper that takes these formats, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def describe(self) -> Iterable[Family]:
        """Nothing: else registering would ask the sources."""
        return []

    def collect(self) -> Iterator[Family]:
        services = {service for service, _ in self._sources.values()}
        found: dict[str, list[Reading]] = {}
        for _, source in list(self._sources.values()):
            for reading in source():
                found.setdefault(reading.metric.name, []).append(reading)
        for metric in metrics.of_services(services):
            yield _family(metric, found.get(metric.name, []))


def _family(metric: Metric, readings: list[Reading]) -> Family:
    match metric.kind:
        case "counter":
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for reading in readings:
                counter.add_metric(reading.labels, _number(reading))
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for reading in readings:
                gauge.add_metric(reading.labels, _number(reading))
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for reading in readings:
                assert isinstance(reading.value, Distribution), metric.name
                histogram.add_metric(
                    reading.labels, _cumulative(metric, reading.value), reading.value.total
                )
            return histogram


def _number(reading: Reading) -> float:
    assert not isinstance(reading.value, Distribution), reading.metric.name
    return float(reading.value)


def _cumulative(metric: Metric, value: Distribution) -> list[tuple[str, float]]:
    """As Prometheus has them: each bucket counts all that is not above its bound."""
    bounds = [*(repr(float(bound)) for bound in metric.buckets), "+Inf"]
    sums: list[tuple[str, float]] = []
    count = 0
    for bound, number in zip(bounds, value.counts, strict=True):
        count += number
        sums.append((bound, float(count)))
    return sums
