"""The type of a time on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click


class PointInTime(click.ParamType[int]):
    """A time on the command line: 2026-01-31T12:00:00Z, or milliseconds since the Unix epoch -> milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text.isdecimal():
            return int(text)
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{value} is no time: write 2026-01-31T12:00:00Z, or milliseconds", param, ctx)
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
