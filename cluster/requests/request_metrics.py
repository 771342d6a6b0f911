"""Keeps the metrics of requests: how long they took, by verb, and how many were refused, by reason.

All are updated once per batch or request, never per message. docs/metrics.md lists names and meanings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from cluster.replication.outcome import Outcome
from cluster.requests.table import VERBS, name_of
from cluster.runtime.figures.counters import buckets
from cluster.runtime.figures.service_metrics import ServiceMetrics
from raftmq_wire.codes import RequestCode, ResponseCode

BOUNDS_MS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0, inf)
"""Upper bounds of the buckets of request latency, in milliseconds. RocketMQ has the same."""
REMOTING = "remoting"
_SENT = {
    Outcome.OK: ResponseCode.SUCCESS,
    Outcome.FAIL: ResponseCode.SERVICE_NOT_AVAILABLE,
    Outcome.UNKNOWN: ResponseCode.SYSTEM_ERROR,
}
_RESPONSES = {code.value: code.name.lower() for code in ResponseCode}


class RequestMetrics(ServiceMetrics):
    """Counts requests and their latencies for the metrics. Implements `RequestFigures` of
    `cluster.replication.slow_requests`. Event loop only."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[int, int], list[int]] = {}
        """(request code, response code) -> number of requests in each bucket. The series are few, because requests
        without a handler are counted under one code."""
        self._sums_ms: dict[tuple[int, int], float] = {}
        counter = self.counter
        self._slow = counter(
            "raftmq_slow_requests",
            "Requests that took longer than log_output.slow_request_ms, by the stage that was slow",
            ("request_code", "stage"),
        )
        self._refused = self.tallies(
            "raftmq_requests_refused", "Requests refused before anything was proposed", "reason"
        )
        self._quota_refused = self.tallies("raftmq_quota_refused", "Refused because of a quota, by its limit", "limit")
        self._denied = counter("raftmq_requests_denied", "Requests that no rule allows to their user", ("outcome",))
        self._codes_refused = counter(
            "raftmq_codes_refused", "Requests with a code that this version does not support", ("code", "language")
        )
        self._queries = counter("raftmq_queries", "Queries of single messages answered", ("kind", "outcome"))

    @property
    def sends(self) -> str:
        """The name under which `sent` counts sends."""
        return VERBS[RequestCode.SEND_MESSAGE].name

    def sent(self, outcome: Outcome, seconds: float, sends: int) -> None:
        """Counts the `sends` sends of one log entry, which were answered with `outcome` after `seconds`."""
        self.answered(RequestCode.SEND_MESSAGE, _SENT[outcome], seconds, sends)

    def answered(self, code: int, response: int, seconds: float, requests: int = 1) -> None:
        """Counts `requests` requests of one code that were answered with the response code `response` after
        `seconds`."""
        key, took_ms = (code, response), 1000 * seconds
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * len(BOUNDS_MS)
            self._sums_ms[key] = 0.0
        counts[bisect_left(BOUNDS_MS, took_ms)] += requests
        self._sums_ms[key] += took_ms * requests

    def slow(self, name: str, stage: str, requests: int) -> None:
        """Counts `requests` slow requests of the verb `name`, which spent most of their time in this stage."""
        self._slow.labels(name.lower(), stage).inc(requests)

    def refused(self, reason: str) -> None:
        """Counts a request that was refused before an entry was proposed for it. `reason` is one of a few short
        texts."""
        counts = self._refused.values
        counts[reason] = counts.get(reason, 0) + 1

    def quota_refused(self, limit: str) -> None:
        """Counts a request that a quota refused, under the name of the quota's limit. `refused` counts the same request
        as well."""
        counts = self._quota_refused.values
        counts[limit] = counts.get(limit, 0) + 1

    def code_refused(self, code: str, language: str) -> None:
        """Counts a request whose code is not supported. `code`: the code as text, and `language`: that of the client;
        the caller replaces rare values, so that there are few series."""
        self._codes_refused.labels(code, language).inc()

    def denied(self, *, enforced: bool) -> None:
        """Counts a request that its user may not make. `enforced` is False if it is only observed, because `auth.mode`
        is not enforce."""
        self._denied.labels("denied" if enforced else "observed").inc()

    def queried(self, kind: str, outcome: str) -> None:
        """Counts an answered query of single messages. `kind`: "key" or "id". `outcome`: "found", "none" or
        "refused"."""
        self._queries.labels(kind, outcome).inc()

    @property
    def refusals(self) -> dict[str, int]:
        """Returns reason -> number of requests refused since the start."""
        return dict(self._refused.values)

    def collect(self) -> Iterator[Metric]:
        """Yields the histogram of latencies, and the counters."""
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Milliseconds until a request was answered, by its code; of sends, from the proposal of their entry",
            labels=("protocol_type", "request_code", "response_code"),
        )
        for (code, response), counts in self._counts.items():
            labels = (REMOTING, name_of(code).lower(), _response_name(response))
            family.add_metric(labels, buckets(BOUNDS_MS, counts), self._sums_ms[code, response])
        yield family
        yield from super().collect()


def _response_name(code: int) -> str:
    return _RESPONSES.get(code) or str(code)
