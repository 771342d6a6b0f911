"""Orderly consumers: one client of a group at a time reads a queue, in its order, while members come, leave and die."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.compat.kills import killed
from tests.support.pace import at_most

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

Start = Callable[..., Any]
QUEUES, EACH = 4, 60
PATIENCE_S = at_most(100)


def send_some(
    mq: raftmq.Client, topic: str, first: int, queues: Sequence[int] = range(QUEUES), each: int = EACH
) -> None:
    """Sends that many messages to each queue, numbered per queue from `first` on."""
    for number in range(first, first + each):
        for queue in queues:
            mq.send(topic, b"x", key=f"{queue}-{number}", queue_id=queue)


def all_seen(readers: list[Any]) -> list[dict[str, Any]]:
    """Returns the messages of all readers, in the order of time."""
    return sorted((line for reader in readers for line in reader.lines("message")), key=lambda line: line["at"])


def wait_for(readers: list[Any], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len({line["key"] for line in all_seen(readers)}) < count:
        assert time.monotonic() < deadline, f"{len({line['key'] for line in all_seen(readers)})} of {count} messages"
        time.sleep(0.2)


def check_order(readers: list[Any], until: int, queues: Sequence[int] = range(QUEUES)) -> None:
    """No message is given to anybody before the one before it in its queue was; all of them are."""
    seen: dict[int, int] = {}
    for line in all_seen(readers):
        queue, number = map(int, line["key"].split("-"))
        assert number <= seen.get(queue, -1) + 1, f"queue {queue}: {number} right after {seen.get(queue, -1)}"
        seen[queue] = max(seen.get(queue, -1), number)
    assert seen == dict.fromkeys(queues, until - 1)


@pytest.mark.parametrize("kind", ["cpp", "java", "java-newest"])
def test_a_queue_is_read_in_order_by_one_client_at_a_time(
    live: LocalCluster, mq: raftmq.Client, start: Start, tell: Callable[[str], None], kind: str
) -> None:
    topic, group = f"{kind}-ordered", f"{kind}-ordered-readers"
    mq.admin.create_topic(topic, QUEUES)
    one = start(kind, "consume", topic, "--group", group, "--orderly")
    one.wait("ready")
    send_some(mq, topic, 0)
    wait_for([one], QUEUES * EACH)
    two = start(kind, "consume", topic, "--group", group, "--orderly")
    two.wait("ready")
    send_some(mq, topic, EACH)
    wait_for([one, two], 2 * QUEUES * EACH)
    with killed(live, live.wait_leader()):
        send_some(mq, topic, 2 * EACH)
        wait_for([one, two], 3 * QUEUES * EACH)
    two.finish()
    send_some(mq, topic, 3 * EACH)
    begun = time.monotonic()
    wait_for([one, two], 4 * QUEUES * EACH)
    tell(f"{kind}: after an orderly leave the other had everything after {time.monotonic() - begun:.1f} s")
    one.finish()
    check_order([one, two], 4 * EACH)
