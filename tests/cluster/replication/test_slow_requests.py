"""What takes long leaves a line in the log: what, how long, and where the time went."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.loading import load
from cluster.replication.outcome import Outcome
from cluster.replication.pending import PendingEntry
from cluster.replication.slow_requests import LINE_EVERY_MS, SlowRequests
from raftlog.types import EntryId


def slow(bound_ms: int = 1000) -> SlowRequests:
    keys: dict[str, Any] = {"node.id": 1, "node.data_dir": "/data", "peers": [{"id": 1, "port": 1}]}
    return SlowRequests(load(None, {}, keys | {"log_output.slow_request_ms": bound_ms, "send.deadline_ms": 3000}))


def entry(arrived_ms: int, proposed_ms: float, index: int = 7) -> PendingEntry:
    made = PendingEntry(EntryId(2, index), arrived_ms + 3000)
    made.proposed_s = proposed_ms / 1000
    made.sends = [SimpleNamespace(slot=SimpleNamespace(name="Orders"))] * 5  # type: ignore[list-item]
    return made


def test_a_slow_entry_says_where_the_time_went(caplog: pytest.LogCaptureFixture) -> None:
    requests = slow()
    requests.settled(entry(10_000, 10_200), Outcome.OK, 10_999)
    assert caplog.messages == []
    requests.settled(entry(10_000, 10_200), Outcome.OK, 11_500)
    assert caplog.messages == [
        "slow: 5 sends (topic Orders, ...) in entry 7 of term 2 took 1500 ms: 200 ms until it was proposed, "
        "1300 ms until it was committed and applied"
    ]
    assert caplog.records[0].levelno == logging.WARNING


def test_there_is_at_most_one_line_a_second_and_it_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    requests = slow()
    for step in range(10):
        requests.settled(entry(0, 10), Outcome.FAIL, 2000 + 10 * step)
    requests.settled(entry(0, 10), Outcome.UNKNOWN, 2000 + LINE_EVERY_MS)
    assert len(caplog.messages) == 2
    assert caplog.messages[0].endswith("known to be lost")
    assert caplog.messages[1].endswith("given up as undecided; 9 more were slow since the line before")
    requests.settled(entry(0, 10), Outcome.OK, 9000)
    assert "more were slow" not in caplog.messages[2]


def test_commands_are_requests_too(caplog: pytest.LogCaptureFixture) -> None:
    made = entry(0, 1)
    made.sends, made.calls = [], [SimpleNamespace()]  # type: ignore[list-item]
    slow().settled(made, Outcome.OK, 1000)
    assert "1 changes of topics, groups or offsets in entry 7" in caplog.messages[0]


def test_zero_switches_it_off(caplog: pytest.LogCaptureFixture) -> None:
    slow(0).settled(entry(0, 1), Outcome.OK, 1e9)
    assert caplog.messages == []
