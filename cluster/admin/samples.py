"""The figures of the last hour: a bounded ring in memory, gone with the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isinf
from typing import Final, NamedTuple

import msgspec

SAMPLES_MAX: Final = 720
"""An hour. At most PEERS_MAX + 16 numbers each: below 1 MB."""
PEERS_MAX: Final = 16


class SeriesView(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plot."""

    name: str
    peer: int | None = None
    """The other node that it is about."""
    values: list[float | None]
    """One per time; null where there is nothing to say, as the latency of no writes."""


class Figures(NamedTuple):
    """One sample; its fields are the names of the series. Rates and latencies: since the sample before."""

    messages_in_per_s: float | None
    """Acknowledged, on the leader."""
    messages_out_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    commit_p50_ms: float | None
    """Time from the proposal of an entry to its answer; as the quantiles below, interpolated within a bucket."""
    commit_p99_ms: float | None
    append_p99_ms: float | None
    """One write to the log, fdatasync included."""
    apply_lag_entries: float
    """Committed and not applied yet."""
    leads: float
    """1 while this node leads and takes writes."""
    term: float
    connections: float
    inflight_bytes: float
    disk_used_percent: float | None
    loop_lag_ms: float
    """The longest delay of a timer in the last 10 s."""


class Sample(NamedTuple):
    """The figures of one moment."""

    time_ms: int
    """Milliseconds since the Unix epoch."""
    figures: Figures
    peer_lag: dict[int, int]
    """Entries that each other member is behind; empty on a follower."""


class Samples:
    """The ring. Event loop only."""

    def __init__(self) -> None:
        self._ring: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, sample: Sample) -> None:
        """The newest; the oldest one goes if there are SAMPLES_MAX."""
        self._ring.append(sample)

    def series(self, since_ms: int = 0) -> tuple[list[int], list[SeriesView]]:
        """The times of the samples after `since_ms`, and the series, in columns as a plot wants them."""
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
    """The value below which this part of the counted ones lie, in ms, linear within a bucket as in Prometheus'
    histogram_quantile; in the bucket without an upper bound its lower one. None if nothing was counted."""
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
