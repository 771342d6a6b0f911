"""Measures how long requests take, by code, and counts slow ones; names and meanings in docs/metrics.md."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from cluster.replication.slow_requests import code_name
from cluster.runtime.figures.tallies import buckets
from raftmq_wire.codes import ResponseCode

BOUNDS_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0, inf)
"""RocketMQ's."""
REMOTING = "remoting"
_RESPONSES = {code.value: code.name.lower() for code in ResponseCode}


class RequestMetrics:
    """Implements `slow_requests.RequestFigures`. Event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: dict[tuple[int, int], list[int]] = {}
        """(request code, response code) -> requests by bucket. Both are out of short lists: what has no handler is
        counted under one code."""
        self._sums_ms: dict[tuple[int, int], float] = {}
        self._slow = Counter(
            "raftmq_slow_requests",
            "Requests that took longer than log_output.slow_request_ms, by the stage that was slow",
            ("request_code", "stage"),
            registry=registry,
        )
        registry.register(self)

    def answered(self, code: int, response: int, seconds: float, requests: int = 1) -> None:
        key, took_ms = (code, response), 1000 * seconds
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * len(BOUNDS_MS)
            self._sums_ms[key] = 0.0
        counts[bisect_left(BOUNDS_MS, took_ms)] += requests
        self._sums_ms[key] += took_ms * requests

    def slow(self, code: int, stage: str, requests: int) -> None:
        self._slow.labels(code_name(code).lower(), stage).inc(requests)

    def collect(self) -> Iterator[Metric]:
        """Gives the registry the histogram of latencies."""
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Milliseconds until a request was answered, by its code; of sends, from the proposal of their entry",
            labels=("protocol_type", "request_code", "response_code"),
        )
        for (code, response), counts in self._counts.items():
            labels = (REMOTING, code_name(code).lower(), _response_name(response))
            family.add_metric(labels, buckets(BOUNDS_MS, counts), self._sums_ms[code, response])
        yield family


def _response_name(code: int) -> str:
    return _RESPONSES.get(code) or str(code)
