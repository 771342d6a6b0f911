"""Delayed messages of Java clients: by level and by a time of their own, each once and not early; recalls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

Start = Callable[..., Any]
COUNT = 20
LEVEL, TIMER = ("--delay-level", "2", 5.0), ("--delay-ms", "2500", 2.5)


@pytest.mark.parametrize(
    ("kind", "how"),
    [("java", LEVEL), ("java", TIMER), ("java-newest", LEVEL), ("java-newest", TIMER), ("java-oldest", LEVEL)],
)
def test_each_comes_once_when_it_is_due(
    mq: raftmq.Client, start: Start, tell: Callable[[str], None], kind: str, how: tuple[str, str, float]
) -> None:
    option, value, delay_s = how
    topic = f"{kind}-later{option}"
    mq.admin.create_topic(topic, 2)
    reader = start(kind, "consume", topic, "--group", f"{topic}-readers")
    reader.wait("ready")
    sender = start(kind, "produce", topic, "--group", f"{topic}-senders", "--count", str(COUNT), option, value)
    sent = {line["key"]: line for line in sender.wait("send", COUNT, 60.0)}
    lines = reader.wait("message", COUNT, 60.0)
    time.sleep(2)
    seen = reader.lines("message")
    reader.finish()
    waited = [line["at"] - sent[line["key"]]["started"] for line in lines]
    tell(f"{kind} {option} {value}: delivered {min(waited):.2f} to {max(waited):.2f} s after they were sent")
    assert sorted(line["key"] for line in seen) == sorted(sent)
    assert {line["status"] for line in sent.values()} == {"SEND_OK"}
    assert min(waited) >= delay_s


@pytest.mark.parametrize("kind", ["java", "java-newest"])
def test_what_is_recalled_does_not_come(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-recalled"
    mq.admin.create_topic(topic, 2)
    reader = start(kind, "consume", topic, "--group", f"{topic}-readers")
    reader.wait("ready")
    arguments = ("--group", f"{topic}-senders", "--count", "12", "--delay-ms", "4000", "--recall", "3")
    sender = start(kind, "produce", topic, *arguments)
    sent = [line["key"] for line in sender.wait("send", 12, 60.0)]
    recalls = sender.wait("recall", 8, 60.0)
    assert [line["id"] for line in recalls] == [line["msg_id"] for line in recalls]
    recalled = {line["key"] for line in recalls}
    assert len(recalled) == 4
    reader.wait("message", 8, 60.0)
    time.sleep(2)
    seen = [line["key"] for line in reader.lines("message")]
    reader.finish()
    assert sorted(seen) == sorted(set(sent) - recalled)
