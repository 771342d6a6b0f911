"""Delayed delivery: turns a delay or a time of delivery into the properties that brokers read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

Delay = float | timedelta | None
"""A delay: seconds, or a timedelta."""
DeliverAt = datetime | int | None
"""A time of delivery: an aware datetime, or milliseconds since 1970."""


def in_seconds(what: str, delay: float | timedelta) -> float:
    """Returns the delay in seconds. Raises TypeError for anything but a number and a timedelta; `what` names the option
    in the error."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if not isinstance(delay, (int, float)):
        raise TypeError(f"{what} is a number of seconds or a timedelta, not {delay!r}")
    return delay


def with_delay(properties: Mapping[str, str] | None, delay: Delay, deliver_at: DeliverAt) -> Mapping[str, str] | None:
    """Returns the properties with the time of delivery added, or unchanged if there is neither a delay nor a time.
    Raises ValueError if both are given, for a negative delay, and for a datetime without a time zone; TypeError for a
    value that is no time."""
    if delay is None and deliver_at is None:
        return properties
    if delay is not None and deliver_at is not None:
        raise ValueError("a message has a delay or a time of delivery, not both")
    if delay is not None:
        seconds = in_seconds("delay=", delay)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a delay of {seconds} s; it is a number of seconds from 0 up")
        return {**(properties or {}), "TIMER_DELAY_MS": str(round(seconds * 1000))}
    if isinstance(deliver_at, datetime) and deliver_at.tzinfo is None:
        raise ValueError(f"deliver_at={deliver_at} has no time zone; write for example datetime(..., tzinfo=UTC)")
    if not isinstance(deliver_at, (datetime, int)):
        kind = type(deliver_at).__name__
        raise TypeError(f"deliver_at= is a datetime or an int of milliseconds since 1970, not {kind}")
    at_ms = round(deliver_at.timestamp() * 1000) if isinstance(deliver_at, datetime) else deliver_at
    return {**(properties or {}), "TIMER_DELIVER_MS": str(at_ms)}
