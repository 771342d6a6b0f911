"""Tallies and spreads are exported as prometheus_client exports its own counters and histograms."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cluster.runtime.figures.counters import Spread, Tally

BOUNDS = (0.0001, 0.5, 1, 4096.0)
VALUES = (0.0, 0.0001, 0.00011, 0.5, 0.75, 1, 1.5, 4096, 4097, 1e9)


def samples(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
    """Returns the samples of a scrape, without the times of creation."""
    text = generate_latest(registry).decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [(one.name, one.labels, one.value) for one in found if not one.name.endswith("_created")]


def test_a_spread_is_a_histogram() -> None:
    ours, theirs = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    spread, histogram = (
        Spread("a_seconds", "Text", BOUNDS),
        Histogram("a_seconds", "Text", buckets=BOUNDS, registry=theirs),
    )
    ours.register(spread)
    assert samples(ours) == samples(theirs), "empty ones, too"
    for value in VALUES:
        spread.observe(value)
        histogram.observe(value)
    assert samples(ours) == samples(theirs)
    assert ours.get_sample_value("a_seconds_bucket", {"le": "0.5"}) == 4


def test_a_tally_is_a_counter() -> None:
    ours, theirs = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    tally, counter = Tally("entries", "Text"), Counter("entries", "Text", registry=theirs)
    ours.register(tally)
    for amount in (1, 2.5, 0):
        tally.inc(amount)
        counter.inc(amount)
    assert samples(ours) == samples(theirs)
    assert ours.get_sample_value("entries_total") == 3.5
