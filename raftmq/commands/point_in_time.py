"""The type of a time on the command line, and of an age."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def age_of(text: str) -> timedelta | None:
    """Returns the age that a text such as 90s, 15m, 2h or 7d names; None if it is none."""
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text)
    return timedelta(seconds=int(found[1]) * _UNITS_S[found[2]]) if found else None


class PointInTime(click.ParamType[int]):
    """A time on the command line: 2026-01-31T12:00:00Z, or milliseconds since the Unix epoch -> milliseconds."""

    name = "time"

    def __init__(self, *, ages: bool = False) -> None:
        """`ages`: an age such as 15m is a time too, that long ago by this machine's clock."""
        self._ages = ages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text.isdecimal():
            return int(text)
        age = age_of(text) if self._ages else None
        try:
            when = datetime.fromisoformat(text) if age is None else datetime.now(UTC) - age
        except (ValueError, OverflowError):
            also = ", an age such as 15m," if self._ages else ","
            self.fail(f"{value} is no time: write 2026-01-31T12:00:00Z{also} or milliseconds", param, ctx)
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
