"""Events are kept across restarts in files of bounded size."""

from __future__ import annotations

from pathlib import Path

from cluster.runtime import events
from cluster.runtime.events import FILE, FILE_BYTES_MAX, OLDER, EventLog

NOW_MS = 1_700_000_000_123


def log_of(directory: Path | None) -> EventLog:
    return EventLog(2, lambda: NOW_MS, directory)


def test_an_event_says_when_where_and_what(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.note("election", "cluster", "node 2 leads term 5: silence")
    (event,) = log.kept()
    assert (event.id, event.node, event.at) == (1, 2, "2023-11-14T22:13:20.123Z")


def test_events_are_there_after_a_restart_and_ids_go_on(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for number in range(3):
        log.note("link", "link 1-2", f"number {number}")
    log.flush(log.take_unwritten())
    log.note("stall", "node 2", "lost by a kill")
    again = log_of(tmp_path)
    assert [event.says for event in again.kept()] == ["number 0", "number 1", "number 2"]
    again.note("start", "node 2", "it started")
    assert [event.id for event in again.kept()] == [1, 2, 3, 4]


def test_a_torn_line_hides_no_other(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.note("start", "node 2", "first")
    log.flush(log.take_unwritten())
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"id": 2, "at": "20\n\xff\xfe\n')
    log.note("stop", "node 2", "last")
    log.flush(log.take_unwritten())
    assert [event.says for event in log_of(tmp_path).kept()] == ["first", "last"]


SAYS = 200
"""Characters of an event's text."""
MANY = 3 * FILE_BYTES_MAX // (SAYS + 80) // 10 * 10
"""Events with which the file begins anew."""


def test_the_files_stay_small(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for number in range(MANY):
        log.note("stall", "node 2", f"number {number}".ljust(SAYS))
        if number % 10 == 9:
            log.flush(log.take_unwritten())
    sizes = [(tmp_path / name).stat().st_size for name in (FILE, OLDER)]
    assert FILE_BYTES_MAX < max(sizes) < FILE_BYTES_MAX + 20 * SAYS
    kept = [event.says.rstrip() for event in log_of(tmp_path).kept()]
    assert kept[-1] == f"number {MANY - 1}"
    assert kept == [f"number {number}" for number in range(MANY - len(kept), MANY)], "none is missing in between"


def test_a_disk_that_takes_nothing_is_no_failure(tmp_path: Path) -> None:
    log = log_of(tmp_path / "missing")
    log.note("start", "node 2", "it started")
    log.flush(log.take_unwritten())
    assert [event.says for event in log.kept()] == ["it started"]


def test_memory_is_bounded() -> None:
    log = log_of(None)
    for number in range(events.KEPT_MAX + 5):
        log.note("stall", "node 2", str(number) * 1000)
    assert len(log.kept()) == events.KEPT_MAX
    assert len(log.kept()[-1].says) == events.SAYS_MAX
    assert log.take_unwritten() == [], "without a directory nothing waits to be written"
