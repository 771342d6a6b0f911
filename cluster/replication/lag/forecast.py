"""Forecasts a follower's lag: when the follower will have caught up, or when the leader will have deleted the entries
that it lacks, so that the follower needs a snapshot.

The forecast depends only on samples of the lag, one per second. The rate is the slope of a straight line through the
samples of the last minute (least squares). If the lag has changed its course since, only the last ten seconds count. A
slope that noise could explain counts as 0.

The leader deletes whole segments, oldest first, for age or for size (`cluster.retention.policy`), and never sooner than
forecast here: `retention.delete_when`, floors and topics that keep messages longer only delay it. The exception is a
disk above `retention.disk_force_clean_percent`, which is a finding of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000
"""Milliseconds for which samples of the lag are kept."""
RECENT_MS: Final = 10_000
SPAN_MIN_MS: Final = 5_000
"""Milliseconds that the samples must cover for a forecast."""
SAMPLES_MIN: Final = 5
ERRORS: Final = 4.0
"""A slope counts only if it is more than this many times as large as its standard error."""
BYTES_MIN: Final = 64 << 10
"""Bytes by which the lag must have changed along the line; less is noise, whatever the error."""
AGE_MIN_MS: Final = 500
TURN_SHARE: Final = 0.1
"""The share of the largest lag by which the line through the last RECENT_MS must change to count as a change of
course."""
SECONDS_MAX: Final = 30 * 86_400
"""The most seconds that a forecast looks ahead."""


class LagSample(NamedTuple):
    """The lag of a follower at a moment of the leader's monotonic clock."""

    at_ms: int
    size_bytes: int
    age_ms: int
    """Age of the oldest entry that the follower lacks."""


class Kept(NamedTuple):
    """The part of the log that the leader keeps."""

    size_bytes: int
    """The least number of bytes at the end of the log that are not deleted for size; 0 if all may be deleted."""
    age_ms: int
    """The least milliseconds for which an entry is kept; 0 if no entry is deleted for its age."""


class Forecast(NamedTuple):
    """A forecast of a follower's lag: its rate of change and its end."""

    bytes_per_s: int
    """Positive while the lag grows, negative while it shrinks, 0 if it stays the same."""
    caught_up_in_s: int | None = None
    """Seconds until the lag is gone; None if it does not shrink, or takes longer than SECONDS_MAX."""
    snapshot_in_s: int | None = None
    """Seconds after which, at the earliest, the leader has deleted what the follower lacks; None if the follower will
    have caught up first, or if the deletion is not expected within SECONDS_MAX."""


def forecast(samples: Sequence[LagSample], kept: Kept) -> Forecast | None:
    """Returns the forecast from samples in ascending order of time; None if they are too few, or cover too short a
    time."""
    if len(samples) < SAMPLES_MIN or samples[-1].at_ms - samples[0].at_ms < SPAN_MIN_MS:
        return None
    times = [sample.at_ms / 1000 for sample in samples]
    growth = _slope(times, [sample.size_bytes for sample in samples], BYTES_MIN)
    ageing = _slope(times, [sample.age_ms / 1000 for sample in samples], AGE_MIN_MS / 1000)
    now = samples[-1]
    caught_up = now.size_bytes / -growth if growth < 0 else None
    ends = [
        _until(now.size_bytes, kept.size_bytes, growth),
        _until(now.age_ms / 1000, kept.age_ms / 1000, ageing),
    ]
    snapshot = min((end for end in ends if end is not None), default=None)
    if caught_up is not None and snapshot is not None and caught_up <= snapshot:
        snapshot = None
    return Forecast(round(growth), _seconds(caught_up), _seconds(snapshot))


def _until(now: float, limit: float, rate: float) -> float | None:
    """Returns the seconds until the value `now`, which changes by `rate` per second, reaches `limit`; 0.0 if it has.
    None if it does not come nearer, or if `limit` is 0, which means that there is none."""
    if not limit:
        return None
    if now >= limit:
        return 0.0
    return (limit - now) / rate if rate > 0 else None


def _seconds(seconds: float | None) -> int | None:
    return None if seconds is None or seconds > SECONDS_MAX else int(seconds)


def _slope(times: list[float], values: list[float], change_min: float) -> float:
    """Returns by how much the values change in a second; 0 if noise could explain it. `times` are in seconds."""
    whole = _line(times, values, change_min)
    recent = next(at for at, time in enumerate(times) if times[-1] - time <= RECENT_MS / 1000)
    if recent == 0 or len(times) - recent < SAMPLES_MIN:
        return whole
    lately = _line(times[recent:], values[recent:], max(change_min, TURN_SHARE * max(values)))
    return lately if lately and abs(lately - whole) > 0.5 * abs(lately) else whole


def _line(times: list[float], values: list[float], change_min: float) -> float:
    """Returns the slope of the line through the points; 0 if noise would explain it, or if the values change by less
    than `change_min` along it."""
    count, mean_time, mean = len(times), sum(times) / len(times), sum(values) / len(values)
    spread = sum((time - mean_time) ** 2 for time in times)
    if not spread:
        return 0.0
    slope = sum((time - mean_time) * (value - mean) for time, value in zip(times, values, strict=True)) / spread
    left = sum((value - mean - slope * (time - mean_time)) ** 2 for time, value in zip(times, values, strict=True))
    error = sqrt(left / max(1, count - 2) / spread)
    is_clear = abs(slope) > ERRORS * error and abs(slope) * (times[-1] - times[0]) >= change_min
    return slope if is_clear else 0.0
