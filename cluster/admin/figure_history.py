"""The figures of the last hour: a bounded ring in memory, which ends with the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isinf
from typing import Final, NamedTuple

import msgspec

SAMPLES_MAX: Final = 720
"""The most samples: those of an hour. With at most PEERS_MAX + 24 numbers each they take less than 1 MB."""
PEERS_MAX: Final = 16


class SeriesView(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plot."""

    name: str
    peer: int | None = None
    """The other node that the line is about; None if it is about this one."""
    values: list[float | None]
    """One value per time; null if there is none, such as a latency without writes."""


class Figures(NamedTuple):
    """One sample. The names of its fields are the names of the series. Rates and latencies are those since the sample
    before."""

    messages_in_per_s: float | None
    """Messages acknowledged per second, on the leader."""
    messages_out_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    commit_p50_ms: float | None
    """Median time from the proposal of an entry to its answer. Like the quantiles below, it is interpolated within a
    bucket."""
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
    """Bytes of requests that this node holds: on the leader, the house (docs/flow.md)."""
    demand_bytes_per_s: float | None
    """Bytes of sends that arrived at the leader per second, the refused ones too; None on a follower. Estimated: each
    refused send counts as many bytes as an acknowledged one has on average, because their bytes are not counted."""
    decided_bytes_per_s: float | None
    """The rate at which the leader's log decides sends, as it was learnt; None if it is not known."""
    admission_limit_bytes: float | None
    """The limit of the house in an overload; None if it is not known."""
    overloaded: float
    """1 while sends are refused because more arrive than the log takes, else 0."""
    refused_overload_per_s: float | None
    """Requests refused per second in an overload."""
    refused_busy_per_s: float | None
    """Requests refused per second above the limits of bytes in flight."""
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
    """Node -> entries that this member is behind; empty on a follower."""


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
        """Returns the times of the samples after `since_ms`, and the series as columns for a plot."""
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
    """Returns the value in ms below which the share `part` of the counted values lies. It is linear within a bucket as
    in Prometheus' histogram_quantile; for the bucket without an upper bound it is the lower one. None if nothing was
    counted."""
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
