"""A slow request leaves a line in the log: which request, whose, how long, and the stage that was slow."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.config.loading import load
from cluster.replication.outcome import Outcome
from cluster.replication.pending_requests import PendingEntry
from cluster.replication.slow_requests import LINE_EVERY_MS, SlowRequests
from cluster.runtime.figures.stage_times import StageTimes
from cluster.runtime.logs import extras
from raftlog.types import EntryId
from tests.support.rows import each_row


class Figures:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.slowed: list[tuple[str, str, int]] = []
        self.seconds: list[float] = []

    sends = "SEND_MESSAGE"

    def answered(self, code: int, response: int, seconds: float) -> None:
        self.seconds.append(seconds)

    def sent(self, outcome: Outcome, seconds: float, sends: int) -> None:
        raise AssertionError("counted where it is timed")

    def slow(self, name: str, stage: str, requests: int) -> None:
        self.slowed.append((name, stage, requests))


class Slow(SlowRequests):
    """A SlowRequests with a clock of the test."""

    def __init__(self, bound_ms: int = 1000) -> None:
        keys: dict[str, Any] = {"node.id": 1, "node.data_dir": "/data", "peers": [{"id": 1, "port": 1}]}
        config = load(None, {}, keys | {"log_output.slow_request_ms": bound_ms, "send.deadline_ms": 3000})
        self.now_s = 0.0
        self.times = StageTimes()
        self.figures = Figures()
        super().__init__(config, lambda: self.now_s, self.times, self.figures)


def entry(arrived_ms: int, proposed_ms: float, index: int = 7) -> PendingEntry:
    made = PendingEntry(EntryId(2, index), arrived_ms, 3000)
    made.proposed_s = proposed_ms / 1000
    client = SimpleNamespace(peer_address=("10.0.0.9", 4711))
    slot = SimpleNamespace(name="Orders")
    send = SimpleNamespace(slot=slot, connection=client, received_ms=arrived_ms, paced_ms=0)
    made.sends = [send] * 5  # type: ignore[list-item]
    return made


def request(name: str = "PULL_MESSAGE", stage: str = "read", **ext: str) -> Any:
    return SimpleNamespace(code=1, name=name, stage=stage, ext=ext, client=("10.0.0.9", 4711))


def test_a_slow_entry_says_where_the_time_went(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    slow.times.synced += [(6, 10_100.0), (9, 11_300.0)]
    slow.times.committed += [(6, 10_100.0), (8, 11_350.0)]
    slow.settled(entry(10_000, 10_200), Outcome.OK, 5, 10_999)
    assert (caplog.messages, slow.figures.slowed) == ([], [])
    slow.settled(entry(10_000, 10_200), Outcome.OK, 5, 11_500)
    assert caplog.messages == ["slow: SEND_MESSAGE took 1500 ms, 1100 ms of it in stage sync"]
    assert caplog.records[0].levelno == logging.WARNING
    assert extras(caplog.records[0]) == {
        "request_code": "SEND_MESSAGE",
        "client": "10.0.0.9:4711",
        "topic": "Orders",
        "requests": 5,
        "term": 2,
        "index": 7,
        "outcome": "ok",
        "total_ms": 1500,
        "slow_stage": "sync",
        "queue_ms": 200,
        "sync_ms": 1100,
        "majority_ms": 50,
        "apply_ms": 150,
    }
    assert slow.figures.slowed == [("SEND_MESSAGE", "sync", 5)]


@each_row(
    ("proposed_ms", "synced_ms", "committed_ms", "stage"),
    [
        (1900, 1910, 1920, "queue"),
        (10, 1910, 1920, "sync"),
        (10, 20, 1920, "majority"),
        (10, 20, 30, "apply"),
        (10, None, None, "sync"),
        (10, 20, None, "majority"),
    ],
)
def test_the_slow_stage_is_named(
    proposed_ms: int, synced_ms: float | None, committed_ms: float | None, stage: str
) -> None:
    """The slow stage of an entry that is given up is the one that has not ended."""
    slow = Slow()
    slow.times.synced += [] if synced_ms is None else [(7, synced_ms)]
    slow.times.committed += [] if committed_ms is None else [(7, committed_ms)]
    slow.settled(entry(0, proposed_ms), Outcome.UNKNOWN, 5, 2000)
    assert [each[1] for each in slow.figures.slowed] == [stage]


def test_the_time_for_which_a_send_waited_for_its_quota_has_a_stage_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow, made = Slow(), entry(0, 900)
    made.sends = [*made.sends, SimpleNamespace(received_ms=850, paced_ms=880)]  # type: ignore[list-item]
    made.sends[0].paced_ms = 800
    slow.times.synced.append((7, 910.0))
    slow.times.committed.append((7, 920.0))
    slow.settled(made, Outcome.OK, 6, 1_000)
    assert [each[1] for each in slow.figures.slowed] == ["quota"]
    told = {name: value for name, value in extras(caplog.records[0]).items() if name.endswith("_ms")}
    assert told == {
        "total_ms": 1000,
        "quota_ms": 800,
        "queue_ms": 100,
        "sync_ms": 10,
        "majority_ms": 10,
        "apply_ms": 80,
    }


def test_there_is_at_most_one_line_a_second_and_it_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    for step in range(10):
        slow.settled(entry(0, 10), Outcome.FAIL, 5, 2000 + 10 * step)
    slow.settled(entry(0, 10), Outcome.UNKNOWN, 5, 2000 + LINE_EVERY_MS)
    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("; 9 more were slow since the line before")
    slow.settled(entry(0, 10), Outcome.OK, 5, 9000)
    assert "more were slow" not in caplog.messages[2]
    assert len(slow.figures.slowed) == 12


def test_a_commit_has_the_stages_of_its_entry(caplog: pytest.LogCaptureFixture) -> None:
    slow, made = Slow(), entry(0, 1)
    made.sends, made.calls = [], [SimpleNamespace()]  # type: ignore[list-item]
    slow.times.synced.append((7, 1800.0))
    slow.settled(made, Outcome.OK, 5, 2000)
    slow.now_s = 2.0
    slow.answered(request("UPDATE_CONSUMER_OFFSET", topic="t", consumerGroup="g"), 0, 0.0)
    slow.told()
    assert caplog.messages == ["slow: UPDATE_CONSUMER_OFFSET took 2000 ms, 1799 ms of it in stage sync"]
    assert {"client": "10.0.0.9:4711", "topic": "t", "group": "g"}.items() <= extras(caplog.records[0]).items()
    slow.answered(request(), 0, 0.0)
    assert [each[1] for each in slow.figures.slowed] == ["sync", "read"]


@pytest.mark.parametrize("stage", ["read", "confirm", "client"])
def test_requests_are_slow_in_the_stage_of_their_verb_when_they_are_answered_late(stage: str) -> None:
    slow = Slow()
    slow.now_s = 0.999
    slow.answered(request("ONE", stage), 0, 0.0)
    assert slow.figures.slowed == []
    slow.now_s = 1.0
    slow.answered(request("ONE", stage), 0, 0.0)
    slow.answered(request("ONE", stage), 0, math.inf)  # was held
    assert slow.figures.slowed == [("ONE", stage, 1)]
    assert slow.figures.seconds == [0.999, 1.0]


def test_zero_switches_it_off(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow(0)
    slow.settled(entry(0, 1), Outcome.OK, 5, 1e9)
    slow.now_s = 1e9
    slow.answered(request(), 0, 0.0)
    assert (caplog.messages, slow.figures.slowed) == ([], [])


def test_a_change_of_role_forgets_the_stages() -> None:
    times = StageTimes()
    times.synced.append((9, 1.0))
    times.committed.append((8, 2.0))
    assert [times.of(8), times.of(9), times.of(10)] == [(1.0, 2.0), (1.0, None), (None, None)]
    times.clear()
    assert times.of(8) == (None, None)
