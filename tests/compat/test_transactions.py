"""Java producers of transactions: what they commit is delivered once, and one of the group answers for another, also
our client for Java and Java for our client."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

import raftmq
from raftmq.local.cluster import LocalCluster
from tests.compat.kills import killed
from tests.compat.places import stored_in

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

Start = Callable[..., Any]
QUEUES, COUNT = 4, 12
CHECKED_S = 100.0
"""A producer is asked after 6 s and every 30 s from then on."""
KINDS = ["java-oldest-transactions", "java-transactions", "java-newest-transactions"]
DECISIONS = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
"""The decision about message n, in turn. UNKNOW is RocketMQ's own spelling."""


def keys_of(mq: raftmq.Client, topic: str) -> list[str]:
    """The keys of all messages that consumers of the topic can see, in order."""
    return sorted(message.body.decode() for message in stored_in(mq, topic))


def decided(prefix: str, *places: int) -> list[str]:
    """The keys of those messages whose number modulo the number of decisions is one of `places`."""
    return sorted(f"{prefix}-{n}" for n in range(COUNT) if n % len(DECISIONS) in places)


@pytest.mark.parametrize("on_check", ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"])
@pytest.mark.parametrize("kind", KINDS)
def test_commit_rollback_and_a_check(mq: raftmq.Client, start: Start, kind: str, on_check: str) -> None:
    topic = f"{kind}-{on_check}"
    mq.admin.create_topic(topic, QUEUES)
    producer = start(kind, "transact", topic, f"{topic}-group", "one", str(COUNT), ",".join(DECISIONS), on_check)
    producer.wait("ready")
    checks = producer.wait("check", COUNT // len(DECISIONS), CHECKED_S)
    assert {line["key"] for line in checks} == set(decided("one", 2))
    transactions = {line["key"]: line["about"] for line in producer.lines("send")}
    assert all(line["about"] == f"{transactions[line['key']]} {topic}" for line in checks)
    producer.finish()
    assert keys_of(mq, topic) == decided("one", 0, 2) if on_check == "COMMIT_MESSAGE" else decided("one", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_another_producer_of_the_group_answers_and_the_leader_dies(
    live: LocalCluster, mq: raftmq.Client, start: Start, kind: str
) -> None:
    topic = f"{kind}-handed-over"
    group = f"{topic}-group"
    mq.admin.create_topic(topic, QUEUES)
    first = start(kind, "transact", topic, group, "one", str(COUNT), "UNKNOW", "UNKNOW")
    first.wait("ready")
    first.kill()
    second = start(kind, "transact", topic, group, "two", str(COUNT), ",".join(DECISIONS), "COMMIT_MESSAGE")
    second.wait("ready")
    with killed(live, live.wait_leader()):
        of_first = second.wait("check", COUNT, CHECKED_S, lambda line: line["key"].startswith("one-"))
        assert {line["key"] for line in of_first} == {f"one-{n}" for n in range(COUNT)}
        second.wait("check", COUNT // len(DECISIONS), CHECKED_S, lambda line: line["key"].startswith("two-"))
    second.finish()
    assert keys_of(mq, topic) == sorted([f"one-{n}" for n in range(COUNT)] + decided("two", 0, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_our_client_answers_for_java_and_java_for_our_client(mq: raftmq.Client, start: Start, kind: str) -> None:
    topic = f"{kind}-with-ours"
    group = f"{topic}-group"
    mq.admin.create_topic(topic, QUEUES)
    java = start(kind, "transact", topic, group, "one", str(COUNT), "UNKNOW", "UNKNOW")
    java.wait("ready")
    java.kill()
    checked: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def check(message: raftmq.Message) -> raftmq.Resolution:
        checked.put((message.topic, message.body))
        return raftmq.Resolution.COMMIT

    with mq.transaction_producer(group, check=check) as ours:
        assert {checked.get(timeout=CHECKED_S) for _ in range(COUNT)} == {
            (topic, f"one-{n}".encode()) for n in range(COUNT)
        }
        left = [ours.transaction(topic, f"two-{n}".encode(), key=f"two-{n}").begin() for n in range(COUNT)]
    # It sends one, because it is known only to brokers whose routes it has fetched.
    java = start(kind, "transact", topic, group, "three", "1", "COMMIT_MESSAGE", "COMMIT_MESSAGE")
    lines = java.wait("check", COUNT, CHECKED_S)
    assert {line["key"] for line in lines} == {f"two-{n}" for n in range(COUNT)}
    assert {line["about"] for line in lines} == {f"{one.message_id} {topic}" for one in left}
    java.finish()
    ended = sorted(f"{prefix}-{n}" for prefix in ("one", "two") for n in range(COUNT))
    assert keys_of(mq, topic) == [*ended[:COUNT], "three-0", *ended[COUNT:]]
