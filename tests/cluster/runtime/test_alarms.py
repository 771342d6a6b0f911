"""Alarms: raised once, known since when, cleared by the part that knows better; shown by health, status and metrics."""

from __future__ import annotations

import logging

import pytest

from cluster.config.local_layout import NodeRecord
from cluster.runtime.alarms import Alarm, Alarms
from raftmq.commands.nodes.status import alarm_lines
from raftmq.local.status import GroupStatus, NodeView
from tests.support.codes import KEYS


class Wall:
    now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


def test_an_alarm_keeps_the_time_of_its_first_raising() -> None:
    wall = Wall()
    alarms = Alarms(wall)
    alarms.raise_alarm(KEYS["log_damage"], "one range")
    wall.now += 5000
    alarms.raise_alarm(KEYS["log_damage"], "two ranges", stops_service=True)
    alarms.raise_alarm(KEYS["backup_overdue"], "no backup for a day")
    assert alarms.all() == [
        Alarm(key="log_damage", text="two ranges", since_ms=wall.now - 5000, stops_service=True),
        Alarm(key="backup_overdue", text="no backup for a day", since_ms=wall.now),
    ]
    alarms.clear("log_damage")
    alarms.clear("log_damage")
    assert not alarms.raised("log_damage")
    assert [alarm.key for alarm in alarms.all()] == ["backup_overdue"]


def test_only_news_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    alarms = Alarms(Wall())
    for _ in range(3):
        alarms.raise_alarm(KEYS["log_damage"], "one range")
    alarms.clear("log_damage")
    alarms.clear("log_damage")
    assert [record.getMessage() for record in caplog.records] == [
        "alarm log_damage: one range",
        "alarm log_damage ended: one range",
    ]


def test_status_tells_which_node_and_since_when() -> None:
    record = NodeRecord(3, None, 1, 2, 3, 4, "/n3/node.log")
    said = {"alarms": [{"key": "log_damage", "text": "one range", "since_ms": 1_700_000_000_000}]}
    view = GroupStatus([NodeView(record, True, said), NodeView(record, True, {}), NodeView(record, False, None)])
    assert alarm_lines(view) == ["alarm on node 3 since 2023-11-14T22:13:20Z, log_damage: one range"]
