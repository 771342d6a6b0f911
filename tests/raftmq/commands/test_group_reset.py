"""`raftmq group reset --to WHERE`: what WHERE may be."""

from __future__ import annotations

import click
import pytest

from raftmq.commands.messages.group import ResetTo
from tests.support.rows import each_row


@each_row(
    ("text", "fields"),
    [
        ("earliest", {"to": "earliest"}),
        ("latest", {"to": "latest"}),
        ("0", {"to": "offset", "value": 0}),
        ("120", {"to": "offset", "value": 120}),
        ("2026-11-20T10:00:00Z", {"to": "time", "value": 1_795_168_800_000}),
        ("2026-11-20T10:00:00.5+01:00", {"to": "time", "value": 1_795_165_200_500}),
    ],
)
def test_where_a_reset_may_go(text: str, fields: dict[str, object]) -> None:
    assert ResetTo().convert(text, None, None) == fields


@each_row("text", ["", "end", "-1", "1.5", "9" * 19, "tomorrow", "1969-01-01T00:00:00Z", "2026-13-01"])
def test_where_it_may_not_go(text: str) -> None:
    with pytest.raises(click.BadParameter):
        ResetTo().convert(text, None, None)
