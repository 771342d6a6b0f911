"""When a message is to be delivered, as the properties that brokers read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

Delay = float | timedelta | None
"""Seconds, or a timedelta."""
DeliverAt = datetime | int | None
"""An aware datetime, or milliseconds since 1970."""


def with_delay(properties: Mapping[str, str] | None, delay: Delay, deliver_at: DeliverAt) -> Mapping[str, str] | None:
    """The properties and the time. Raises ValueError for both at once, a negative delay, or a datetime
    without a time zone."""
    if delay is None and deliver_at is None:
        return properties
    if delay is not None and deliver_at is not None:
        raise ValueError("a message has a delay or a time of delivery, not both")
    if delay is not None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a delay of {seconds} s; it is a number of seconds from 0 up")
        return {**(properties or {}), "TIMER_DELAY_MS": str(round(seconds * 1000))}
    if isinstance(deliver_at, datetime) and deliver_at.tzinfo is None:
        raise ValueError(f"deliver_at={deliver_at} has no time zone; write for example datetime(..., tzinfo=UTC)")
    at_ms = round(deliver_at.timestamp() * 1000) if isinstance(deliver_at, datetime) else deliver_at
    return {**(properties or {}), "TIMER_DELIVER_MS": str(at_ms)}
