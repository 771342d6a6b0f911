"""A message that orderly Java consumers of both lines give up is a dead letter once, and comes no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import raftmq
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

Start = Callable[..., Any]
TIMES = 2
QUIET_S = 15.0
"""A copy that were to come again would do so after 10 s: delay level 3."""


def is_there(mq: raftmq.Client, topic: str) -> bool:
    try:
        return mq.admin.max_offset(topic, 0) > 0
    except raftmq.NotFound:
        return False


@pytest.mark.parametrize("kind", ["java-oldest", "java", "java-newest"])
def test_what_an_orderly_consumer_gives_up_is_a_dead_letter(
    mq: raftmq.Client, start: Start, tell: Callable[[str], None], kind: str
) -> None:
    topic, group = f"{kind}-given-up", f"{kind}-given-up-readers"
    mq.admin.create_topic(topic, 1)
    reader = start(kind, "consume", topic, "--group", group, "--orderly", "--fail", "99", "--max-times", str(TIMES))
    reader.wait("ready")
    mq.send(topic, b"x", key="bad")
    reader.wait("message", TIMES + 1)
    deadline, dead = time.monotonic() + at_most(60), f"%DLQ%{group}"
    while not is_there(mq, dead):
        assert time.monotonic() < deadline, reader.story()
        time.sleep(0.2)
    time.sleep(QUIET_S)
    tell(f"{kind}: {len(reader.lines('message'))} tries, then {dead}")
    assert len(reader.lines("message")) == TIMES + 1
    assert len(mq.pull(dead, 0, 0).messages) == 1
