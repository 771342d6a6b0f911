"""Learns limits from counted traffic: rates that a topic has not exceeded in each hour, with some room. This module
needs no Spark.

Messages and bytes are counted in spans of ten seconds. The limit of an hour is the greater of two estimates, times
HEADROOM: the 99.9th percentile of the spans of this hour and its neighbours; and the mean of these spans, times the
factor by which the topic's spans exceed the mean of their hour (`Straying`). The first estimate covers what is special
about an hour. The second covers rare peaks that may come in any hour, of which a single hour has too few examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from raftmq_wire.learnt_file import DAY, WEEK, TopicLimits

SPAN_MS: Final = 10_000
"""The length of a span in ms: the time in which a leader's token bucket fills
(`cluster.replication.learnt_use.BURST_MS`)."""
SPAN_S: Final = SPAN_MS // 1000
HOUR_MS: Final = 3_600_000
WEEKS_MS: Final = 2 * WEEK * HOUR_MS - HOUR_MS
"""The time in ms that the traffic must span for limits by hours of the week: (nearly) two weeks, so that each hour was
seen twice."""
HEADROOM: Final = 1.3
"""The factor by which a limit exceeds the estimate."""
FLOOR: Final = 10
FLOOR_BYTES: Final = 64 * 1024
"""The lowest limits, FLOOR messages and FLOOR_BYTES bytes a second. A topic with hardly any traffic shows little about
its needs."""
PEAK: Final = 0.999
STRAYS: Final = 0.9999
"""Two quantiles of spans: PEAK of the spans of an hour, and STRAYS of all spans of a topic relative to their hour's
mean."""


class HourCounts(NamedTuple):
    """The spans of a topic in which anything came, in one of the hours of the week or of the day."""

    topic: str
    hour: int
    spans: int
    messages_mean: float
    messages_peak: float
    """The quantile PEAK of the messages in a span."""
    bytes_mean: float
    bytes_peak: float


class Straying(NamedTuple):
    """The quantile STRAYS, over all spans of a topic, of the ratio of a span to the mean of its hour."""

    messages: float
    bytes: float


def hours_for(first_ms: int, last_ms: int) -> int:
    """Returns the number of hours that have limits of their own if the messages span this time: those of a week (WEEK),
    or of a day (DAY)."""
    return WEEK if last_ms - first_ms >= WEEKS_MS else DAY


def limits_of(hours: int, counts: Iterable[HourCounts], straying: Mapping[str, Straying]) -> dict[str, TopicLimits]:
    """Returns topic -> its limits, for each topic in `counts`."""
    by_topic: dict[str, dict[int, HourCounts]] = {}
    for each in counts:
        by_topic.setdefault(each.topic, {})[each.hour] = each
    return {topic: _limits(hours, found, straying[topic]) for topic, found in sorted(by_topic.items())}


def _limits(hours: int, found: Mapping[int, HourCounts], straying: Straying) -> TopicLimits:
    messages, size = [], []
    for hour in range(hours):
        near = [each for at in (hour - 1, hour, hour + 1) if (each := found.get(at % hours)) is not None]
        most = max((max(each.messages_peak, each.messages_mean * straying.messages) for each in near), default=0.0)
        most_bytes = max((max(each.bytes_peak, each.bytes_mean * straying.bytes) for each in near), default=0.0)
        messages.append(max(FLOOR, round(HEADROOM * most / SPAN_S)))
        size.append(max(FLOOR_BYTES, round(HEADROOM * most_bytes / SPAN_S)))
    return TopicLimits(messages, size)
