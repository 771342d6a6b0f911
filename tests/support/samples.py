"""Metrics of a service as a scrape shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest

from cluster.runtime.figures.service_metrics import ServiceMetrics


def registry_of(*services: ServiceMetrics) -> CollectorRegistry:
    """Returns a registry of the metrics; it refuses a name that two services use."""
    registry = CollectorRegistry(auto_describe=True)
    for service in services:
        registry.register(service)
    return registry


def sample(services: ServiceMetrics | Sequence[ServiceMetrics], name: str, **labels: str) -> float | None:
    """Returns the value of one sample, None if there is none."""
    several = (services,) if isinstance(services, ServiceMetrics) else services
    return registry_of(*several).get_sample_value(name, labels)


def samples(*services: ServiceMetrics) -> list[tuple[str, Mapping[str, str], float]]:
    """Returns (name, labels, value) of every sample."""
    return [(each.name, each.labels, each.value) for one in registry_of(*services).collect() for each in one.samples]


def text_of(*services: ServiceMetrics) -> str:
    """Returns the exposition text."""
    return generate_latest(registry_of(*services)).decode()
