"""Declarations of metrics, and how readings are counted and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry import metrics
from shared.telemetry.meters import Meters
from shared.telemetry.metric import Counts, Distribution, Histogram, Metric, Reading
from tests.support.scraping import Scrape

REQUESTS = metrics.REQUESTS


def test_a_counter_and_nothing_else_ends_in_total() -> None:
    with pytest.raises(ValueError, match="_total"):
        Metric("moonpool_things", "counter", "text")
    with pytest.raises(ValueError, match="_total"):
        Metric("moonpool_things_total", "gauge", "text")
    with pytest.raises(ValueError, match="buckets"):
        Metric("moonpool_things", "histogram", "text")


def test_every_name_is_declared_once_and_starts_with_ours() -> None:
    declared = list(metrics.of_services(metrics.OF_SERVICE))
    names = [metric.name for metric in declared]
    assert len(names) == len(set(names))
    assert all(name.startswith("moonpool_") for name in names)
    assert all(metric.help and len(metric.labels) <= 3 for metric in declared)
    assert all(list(metric.buckets) == sorted(set(metric.buckets)) for metric in declared)


def test_every_constant_is_shown_by_some_service() -> None:
    constants = {value for value in vars(metrics).values() if isinstance(value, Metric)}
    assert constants == set(metrics.of_services(metrics.OF_SERVICE))


@given(values=st.lists(st.floats(min_value=0, max_value=100), max_size=50))
def test_a_histogram_counts_each_value_in_the_lowest_bucket_that_holds_it(
    values: list[float],
) -> None:
    histogram = Histogram(metrics.TTFT)
    histogram.observe_all(values, "m")
    reading = next(iter(histogram.readings()))
    assert isinstance(reading.value, Distribution)
    assert sum(reading.value.counts) == len(values)
    assert reading.value.total == pytest.approx(sum(values))
    for number, bound in enumerate(metrics.TTFT.buckets):
        at_most = sum(reading.value.counts[: number + 1])
        assert at_most == sum(value <= bound for value in values)


def test_what_is_scraped_is_what_was_counted() -> None:
    meters, counts = Meters(), Counts(REQUESTS)
    histogram = Histogram(metrics.TTFT)
    remove = meters.add("gateway", lambda: [*counts.readings(), *histogram.readings()])
    counts.add(2, "m", "stop")
    counts.add(1, "m", "stop")
    histogram.observe_all((0.02, 0.02, 99.0), "m")
    scrape = Scrape(meters.text()[0].decode())
    assert scrape.value(REQUESTS, model="m", outcome="stop") == 3
    assert scrape.count(metrics.TTFT, model="m") == 3
    assert scrape.sum(metrics.TTFT, model="m") == pytest.approx(99.04)
    assert scrape.bucket(metrics.TTFT, "0.025", model="m") == 2
    assert scrape.bucket(metrics.TTFT, "+Inf", model="m") == 3
    remove()
    assert REQUESTS.name not in meters.text()[0].decode()


def test_a_family_is_there_before_anything_has_happened() -> None:
    meters = Meters()
    meters.add("gateway", lambda: [])
    text = meters.text()[0].decode()
    for metric in (*metrics.COMMON, *metrics.GATEWAY):
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
    assert metrics.POOL_SLOTS.name not in text


def test_the_scraper_chooses_the_format() -> None:
    meters = Meters()
    meters.add("gateway", lambda: [REQUESTS.of(1, "m", "stop")])
    plain, plain_type = meters.text("text/plain")
    assert plain_type.startswith("text/plain")
    assert list(text_string_to_metric_families(plain.decode()))
    modern, modern_type = meters.text("application/openmetrics-text; version=1.0.0")
    assert modern_type.startswith("application/openmetrics-text")
    assert modern.endswith(b"# EOF\n")


def test_a_reading_keeps_its_labels_in_order() -> None:
    assert REQUESTS.of(3, "m", "stop") == Reading(REQUESTS, ("m", "stop"), 3)
