"""Times on the command line, read and printed. All commands use this module, so each accepts what another one prints.

A time is ISO 8601, 2026-01-31T12:00:00Z, with a blank or a T and with any zone. Without a zone it is UTC. An age, such
as 15m, is that long ago by this machine's clock. Times are printed in UTC. With RAFTMQ_TIMES=local, those without a
zone are this machine's local time, and times are printed in it.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import click

from raftmq_wire.errors import ExitCode, LocalError

VARIABLE = "RAFTMQ_TIMES"
FORMS = "write 2026-01-31T12:00:00Z (UTC without a zone)"
AGES = f"{FORMS} or an age such as 2h"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def age_of(text: str) -> timedelta | None:
    """Returns the age that a text such as 90s, 15m, 2h or 7d names; None if it is none."""
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text)
    return timedelta(seconds=int(found[1]) * _UNITS_S[found[2]]) if found else None


def moment_ms(text: str, *, ages: bool = True) -> int:
    """Returns the time that a text names, in milliseconds since the epoch. With `ages` an age is a time too. Raises
    ValueError, also for a time before the epoch; LocalError for a wrong word in RAFTMQ_TIMES."""
    age = age_of(text) if ages else None
    try:
        when = datetime.fromisoformat(text) if age is None else datetime.now(UTC) - age
        if when.tzinfo is None:
            when = when.astimezone() if _zone() is None else when.replace(tzinfo=UTC)
        ms = int(when.timestamp() * 1000)
    except (OverflowError, OSError) as error:
        raise ValueError(text) from error
    if ms < 0:
        raise ValueError(text)
    return ms


def time_text(ms: int | None, *, exact: bool = False) -> str:
    """Returns a time in the form in which it is printed, to the second or, if `exact`, to the millisecond; "-" for
    None. `ms`: milliseconds since the epoch."""
    if ms is None:
        return "-"
    when = datetime.fromtimestamp(min(max(ms, 0), _MS_MAX) / 1000, UTC).astimezone(_zone())
    return when.isoformat(timespec="milliseconds" if exact else "seconds").replace("+00:00", "Z")


def told_time(text: str) -> str:
    """Returns a time from a node's answer, RFC 3339 in UTC, in the form in which it is printed."""
    if _zone() is UTC:
        return text
    return time_text(moment_ms(text, ages=False), exact="." in text)


def _zone() -> tzinfo | None:
    """Returns the zone of times without a zone: UTC, or None for this machine's local time."""
    word = os.environ.get(VARIABLE, "utc").strip().lower()
    if word not in ("", "utc", "local"):
        raise LocalError(f"{VARIABLE}={word}", "times are read and printed in one zone", f"{VARIABLE}=utc, or local",
                         ExitCode.USAGE)  # fmt: skip
    return None if word == "local" else UTC


class PointInTime(click.ParamType[int]):
    """A time on the command line, converted to milliseconds since the epoch. A number is taken as such milliseconds."""

    name = "time"

    def __init__(self, *, ages: bool = False) -> None:
        """`ages`: an age such as 15m is a time too, meaning that long ago by this machine's clock."""
        self._ages = ages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts the text to a time. Raises BadParameter for anything else."""
        text = str(value)
        if text.isascii() and text.isdecimal():
            if int(text) > _MS_MAX:
                self.fail(f"{value} milliseconds since 1970 lie behind the year 9999", param, ctx)
            return int(text)
        try:
            return moment_ms(text, ages=self._ages)
        except ValueError:
            self.fail(f"{value} is no time: {AGES if self._ages else FORMS}, or milliseconds since 1970", param, ctx)
