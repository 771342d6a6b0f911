"""`raftmq broker-group drain` says in lines what is left in a group of brokers."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.commands.nodes.broker_group import show_drain

DONE = {
    "group": 2,
    "state": "draining",
    "since_ms": 0,
    "done": True,
    "topics_alone": [],
    "topics_alone_total": 0,
    "order_topics": [],
    "order_topics_total": 0,
    "unread": [],
    "unread_groups": 0,
    "unread_by_nobody": [],
    "dead_letters": [],
    "timers": 0,
    "next_due_ms": None,
    "half_messages": 0,
    "attempts": 0,
    "prepared_writes": 0,
    "tier_segments": 0,
    "tier_bytes": 0,
}


def lines(capsys: pytest.CaptureFixture[str], **fields: Any) -> list[str]:
    show_drain({**DONE, **fields}, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_a_group_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = lines(capsys)
    assert first.startswith("group 2 is draining since 1970-01-01T")
    assert rest == ["nothing is left"]


def test_all_that_may_be_left(capsys: pytest.CaptureFixture[str]) -> None:
    unread = {"consumer_group": "billing", "messages": 7, "topics": ["a", "b"], "members": 0, "broadcasts": False}
    told = lines(
        capsys,
        state="active",
        since_ms=None,
        done=False,
        topics_alone=["a", "b", "c", "d", "e", "f"],
        topics_alone_total=9,
        order_topics=["a"],
        order_topics_total=1,
        unread=[
            unread,
            {**unread, "consumer_group": "mail", "messages": 1, "topics": ["a"], "members": 2, "broadcasts": True},
        ],
        unread_groups=3,
        unread_by_nobody=[{"topic": "old", "messages": 4}],
        dead_letters=[{"consumer_group": "billing", "messages": 1}],
        timers=2,
        next_due_ms=0,
        half_messages=1,
        attempts=2,
        prepared_writes=1,
        tier_segments=2,
        tier_bytes=2048,
    )
    assert [line for line in told if "not due" not in line] == [
        "group 2 is active",
        "in no other group: a, b, c, d, e and 4 more (--spread)",
        "ordered: a (--move-keys)",
        "billing has 7 messages to read in a, b; nobody connected",
        "mail has 1 message to read in a; 2 members connected; it reads by broadcasting, and only its members know how "
        "far",
        "and 1 consumer group more",
        "topic old has 4 messages, and no consumer group reads it",
        "billing has 1 dead letter",
        "1 half message",
        "2 unfinished staged attempts",
        "1 prepared write",
        "2 segments (2.0 KiB) in the tier: they stay, and no node reads them",
    ]
    assert any(line.startswith("2 messages not due, the next at 1970-01-01T") for line in told)
