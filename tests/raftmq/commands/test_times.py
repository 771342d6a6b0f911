"""Times on the command line: one parser and one printer, and what is printed can be typed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import raftmq.commands
from raftmq.cli import cli
from raftmq.commands.point_in_time import PointInTime, moment_ms, time_text, told_time
from raftmq_wire.errors import LocalError
from tests.support.rows import each_row

MS = 1_700_000_000_123
NOON = 1_795_168_800_000
"""2026-11-20T10:00:00Z."""


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's local time is one hour ahead of UTC in November."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_times_are_utc_unless_somebody_asks_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("2026-11-20T10:00:00Z", "2026-11-20 10:00:00", "2026-11-20T11:00:00+01:00", "2026-11-20 10:00"):
        assert moment_ms(text) == NOON
    assert (time_text(NOON), time_text(MS, exact=True)) == ("2026-11-20T10:00:00Z", "2023-11-14T22:13:20.123Z")
    assert told_time("2026-11-20T10:00:00.000Z") == "2026-11-20T10:00:00.000Z"
    monkeypatch.setenv("RAFTMQ_TIMES", "local")
    assert moment_ms("2026-11-20T10:00:00Z") == NOON
    assert moment_ms("2026-11-20 11:00:00") == NOON
    assert time_text(NOON) == told_time("2026-11-20T10:00:00Z") == "2026-11-20T11:00:00+01:00"
    monkeypatch.setenv("RAFTMQ_TIMES", "mars")
    with pytest.raises(LocalError):
        time_text(NOON)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("times", ["utc", "local"])
def test_what_is_printed_can_be_typed(times: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTMQ_TIMES", times)
    assert moment_ms(time_text(MS, exact=True)) == MS
    assert PointInTime().convert(time_text(NOON), None, None) == NOON


def test_ages_and_milliseconds_are_times_and_other_words_are_none() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= moment_ms("2h") + 7_200_000 <= time.time_ns() // 1_000_000
    assert PointInTime().convert(str(MS), None, None) == MS
    for wrong in ("noon", "-1", "2y", "0h", "1e3", "9" * 30, "999999999d", "0001-01-01", "1969-12-31T23:59:59Z"):
        with pytest.raises(click.BadParameter):
            PointInTime(ages=True).convert(wrong, None, None)


@each_row(
    "words",
    [
        ["events", "--since"],
        ["messages", "find", "--topic", "orders", "--key", "k", "--since"],
        ["messages", "find", "--topic", "orders", "--key", "k", "--until"],
        ["messages", "browse", "orders", "--until"],
        ["messages", "browse", "orders", "--from"],
        ["consume", "orders", "--from"],
        ["group", "reset", "billing", "--topic", "orders", "--yes", "--to"],
        ["restore", "--into", "new", "--from-tier", "file:///srv/tier", "--to-time"],
    ],
)
def test_every_option_that_takes_a_time_takes_the_same(words: list[str], tmp_path: Path) -> None:
    """The command fails later than at the time, for there is no cluster."""
    env: dict[str, Any] = {"RAFTMQ_DATA": str(tmp_path / "none"), "RAFTMQ_ADMIN": None, "RAFTMQ_SERVERS": None}
    for text in ("2h", "2026-11-20T10:00:00Z", "2026-11-20 10:00:00", "2026-11-20T11:00:00+01:00"):
        told = CliRunner().invoke(cli, [*words, text], env=env).stderr
        assert "time" not in told.partition("\n")[0], told
    assert "write 2026-01-31T12:00:00Z" in CliRunner().invoke(cli, [*words, "noon"], env=env).stderr


def test_no_command_reads_or_prints_times_in_its_own_way() -> None:
    """A name of a file may have a time in another form."""
    folder = Path(raftmq.commands.__file__).parent
    own = re.compile(r"fromisoformat|strftime|astimezone|isoformat|localtime|click\.DateTime|%H")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if own.search(path.read_text())}
    assert found == {"point_in_time.py", "support.py"}
