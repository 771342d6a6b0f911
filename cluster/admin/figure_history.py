"""Keeps the figures of the last hour in a bounded ring in memory. They are lost when the process ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isinf
from typing import Final, NamedTuple

import msgspec

SAMPLES_MAX: Final = 720
"""The most samples that are kept, one hour's worth. Each has at most PEERS_MAX + 24 numbers, so all take less than 1
MB."""
PEERS_MAX: Final = 16


class SeriesView(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plot."""

    name: str
    peer: int | None = None
    """The other node that the line is about; None if it is about this one."""
    values: list[float | None]
    """One value for each time of the answer; null if there is none, such as a latency while nothing was written."""


class Figures(NamedTuple):
    """The figures of one sample. Each field's name is the name of a series. Rates and latencies cover the time since
    the sample before."""

    messages_in_per_s: float | None
    """Messages acknowledged per second, on the leader."""
    messages_out_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    commit_p50_ms: float | None
    """Median time from the proposal of an entry to its answer. It is interpolated within a histogram bucket, like the
    99th percentiles below."""
    commit_p99_ms: float | None
    append_p99_ms: float | None
    """99th percentile of the time of a write to the log, fdatasync included."""
    apply_lag_entries: float
    """Entries that are committed but not applied yet."""
    leads: float
    """1 while this node leads and accepts writes, else 0."""
    term: float
    connections: float
    inflight_bytes: float
    """Bytes of requests that this node holds. On the leader these are the sends in the "house" of docs/flow.md: those
    that wait in its queue, for a majority of disks, or for apply."""
    demand_bytes_per_s: float | None
    """Bytes of sends that arrived at the leader per second, including refused ones; None on a follower, or if nothing
    tells the size of the refused ones. The bytes of refused sends are not counted, so each is estimated at the mean
    size of the acknowledged ones."""
    decided_bytes_per_s: float | None
    """Bytes of sends per second that the leader's log can decide, as the leader has measured; None if it is not
    known."""
    admission_limit_bytes: float | None
    """The most bytes of sends that the leader holds in an overload (the limit of the house); None if it is not
    known."""
    overloaded: float
    """1 while the node refuses sends because more arrive than the log can take, else 0."""
    refused_overload_per_s: float | None
    """Requests refused per second because of an overload."""
    refused_busy_per_s: float | None
    """Requests refused per second because too many bytes were in flight."""
    refused_other_per_s: float | None
    """Requests refused per second for any other reason."""
    disk_used_percent: float | None
    loop_lag_ms: float
    """The longest delay of a timer in the last 10 s, in milliseconds."""


class Sample(NamedTuple):
    """The figures of one moment."""

    time_ms: int
    """Milliseconds since the Unix epoch."""
    figures: Figures
    peer_lag: dict[int, int]
    """Node -> number of entries by which this member is behind the leader; {} on a follower."""


class Samples:
    """The ring of samples. Event loop only."""

    def __init__(self) -> None:
        self._ring: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, sample: Sample) -> None:
        """Adds the newest sample, and drops the oldest if there are SAMPLES_MAX."""
        self._ring.append(sample)

    def series(self, since_ms: int = 0) -> tuple[list[int], list[SeriesView]]:
        """Returns (times, series) of the samples after `since_ms`: times in ms since 1970, and for each series one
        value per time."""
        samples = [sample for sample in self._ring if sample.time_ms > since_ms]
        series = [
            SeriesView(name=name, values=[_rounded(sample.figures[at]) for sample in samples])
            for at, name in enumerate(Figures._fields)
        ]
        peers = sorted({peer for sample in samples for peer in sample.peer_lag})
        series += [
            SeriesView(name="peer_lag_entries", peer=peer, values=[sample.peer_lag.get(peer) for sample in samples])
            for peer in peers
        ]
        return [sample.time_ms for sample in samples], series


def quantile_ms(bounds_s: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """Returns the time in ms below which the share `part` (0 to 1) of the counted values lies; None if nothing was
    counted. `bounds_s` are the upper bounds of the buckets in seconds, `counts` the numbers of values in them. The
    result is interpolated within its bucket, as in Prometheus' histogram_quantile. For the last, unbounded bucket it is
    the bucket's lower bound."""
    wanted = part * sum(counts)
    if not wanted:
        return None
    below = 0
    for (low, high), count in zip(pairwise((0.0, *bounds_s)), counts, strict=True):
        if count and below + count >= wanted:
            return 1000 * (low if isinf(high) else low + (high - low) * (wanted - below) / count)
        below += count
    return 1000 * bounds_s[-2]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
