"""/v1/members/{id}/history: returns the figures of a node in the last hour, for plots.

It does not replace Prometheus. It answers the first questions about a node whose metrics nobody collects.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from cluster.admin import route, route_rights
from cluster.admin.figure_history import PEERS_MAX, Figures, Sample, SeriesView, quantile_ms
from cluster.admin.handler_request import Call
from cluster.admin.node_interface import AdminPort, Counted, NodeStatus
from cluster.admin.request_parsing import number_of
from cluster.admin.route import Route
from cluster.flow.gate import Limit
from cluster.requests.verb import Serves
from cluster.runtime.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

SAMPLE_S: Final = 5.0
SINCE: Final = "since_ms"


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/members/{id}/history`: the node's samples of the last hour, or since its start, oldest
    first."""

    node: int
    applied_index: int
    interval_ms: int
    times_ms: list[int]
    """The time of each sample, in milliseconds since the Unix epoch by the node's clock."""
    series: list[SeriesView]


class Sampler:
    """Takes a sample of a node's figures every SAMPLE_S seconds. Event loop only."""

    def __init__(self, port: AdminPort, clock: Clock | None = None) -> None:
        self._port = port
        self._clock = clock or SystemClock()
        self._before: tuple[float, Counted, int] | None = None
        """The sample before: (time in seconds, counters, bytes in flight); None before the first one."""

    async def run(self) -> None:
        """Takes a sample every SAMPLE_S, until it is cancelled."""
        while True:
            try:
                self.take()
            except Exception:
                logger.exception("no sample for the history was taken")
            await asyncio.sleep(SAMPLE_S)

    def take(self) -> None:
        """Takes a sample now. The rates in the first one are None, because a rate needs the sample before."""
        now_s, counted, status = self._clock.monotonic_s(), self._port.observed.counted(), self._port.status()
        held = status.load.inflight_bytes
        before_s, before, held_before = self._before or (now_s, counted, held)
        self._before = now_s, counted, held
        figures = _figures(status, before, counted, now_s - before_s, held - held_before)
        lag = {peer.node: peer.lag_entries for peer in status.peers[:PEERS_MAX]}
        self._port.observed.samples.add(Sample(self._clock.wall_ms(), figures, lag))


async def get_history(call: Call) -> HistoryView:
    """Returns throughput, latency, lag and load of a node in the last hour, one value each 5 s."""
    since_ms = number_of(call.query, SINCE)
    times_ms, series = call.port.observed.samples.series(since_ms)
    return HistoryView(
        node=call.port.config.node.id,
        applied_index=call.port.state.applied.index,
        interval_ms=int(SAMPLE_S * 1000),
        times_ms=times_ms,
        series=series,
    )


def _figures(status: NodeStatus, before: Counted, now: Counted, seconds: float, held_more: int) -> Figures:
    """Returns the figures of one sample. `before` and `now` are the counters `seconds` apart. `held_more` is the number
    of bytes by which the bytes in flight have grown in that time."""

    def rate(since: int, until: int) -> float | None:
        return (until - since) / seconds if seconds > 0 else None

    def refused(*reasons: str) -> tuple[int, int]:
        return sum(before.refused.get(each, 0) for each in reasons), sum(now.refused.get(each, 0) for each in reasons)

    others = now.refused.keys() - {Limit.OVERLOAD, Limit.BYTES}
    arrived = _arrived(before, now, held_more) if status.writes_open else None
    load = status.load
    commits = [until - since for since, until in zip(before.commits, now.commits, strict=True)]
    appends = [until - since for since, until in zip(before.appends, now.appends, strict=True)]
    return Figures(
        messages_in_per_s=rate(before.messages_in, now.messages_in),
        messages_out_per_s=rate(before.messages_out, now.messages_out),
        bytes_in_per_s=rate(before.bytes_in, now.bytes_in),
        bytes_out_per_s=rate(before.bytes_out, now.bytes_out),
        commit_p50_ms=quantile_ms(now.commit_bounds_s, commits, 0.5),
        commit_p99_ms=quantile_ms(now.commit_bounds_s, commits, 0.99),
        append_p99_ms=quantile_ms(now.append_bounds_s, appends, 0.99),
        apply_lag_entries=max(0, status.commit_index - status.applied_index),
        leads=status.writes_open,
        term=status.term,
        connections=load.connections,
        inflight_bytes=load.inflight_bytes,
        demand_bytes_per_s=None if arrived is None else rate(0, arrived),
        decided_bytes_per_s=load.decided_bytes_per_second or None,
        admission_limit_bytes=load.admission_bytes or None,
        overloaded=load.overloaded,
        refused_overload_per_s=rate(*refused(Limit.OVERLOAD)),
        refused_busy_per_s=rate(*refused(Limit.BYTES)),
        refused_other_per_s=rate(*refused(*others)),
        disk_used_percent=status.disk.used_percent if status.disk is not None else None,
        loop_lag_ms=1000 * now.loop_lag_s,
    )


def _arrived(before: Counted, now: Counted, held_more: int) -> int | None:
    """Returns an estimate of the bytes of sends that arrived between two samples: the acknowledged ones, plus the
    growth of those in flight, plus the refused ones at the mean size of a message. Returns None if sends were refused
    and no message was ever acknowledged, so that no mean size is known."""
    refused = sum(now.refused.get(each, 0) - before.refused.get(each, 0) for each in (Limit.OVERLOAD, Limit.BYTES))
    stored, taken = now.messages_in - before.messages_in, now.bytes_in - before.bytes_in
    if refused and not now.messages_in:
        return None
    mean = (taken / stored if stored else now.bytes_in / now.messages_in) if refused else 0.0
    return max(0, int(taken + held_more + refused * mean))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/members/{id}/history",
        get_history,
        HistoryView,
        route.CONSTANT,
        route_rights.CLUSTER_GET,
        Serves.MEMBER,
        asks=(SINCE,),
    ),
)
