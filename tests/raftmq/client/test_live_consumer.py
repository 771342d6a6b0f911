"""Several topics, acknowledgements, seeks and retries that are told: three real nodes whose leader is killed."""

from __future__ import annotations

import datetime
import queue
import random
import threading
import time
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from raftmq.client import Client, Message, Position, Retry, connect
from tests.support.pace import at_most

pytestmark = pytest.mark.live


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


def test_workers_lose_nothing_while_leaders_are_killed_at_random_times(live_cluster: Any) -> None:
    """Two topics, one consumer that acknowledges each message out of order, in the threads that handled them."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown where the test fails
    rng = random.Random(seed)
    topics, group = (fresh("orders"), fresh("refunds")), fresh("billing")
    told: list[Retry] = []
    handled: Counter[str] = Counter()
    work: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    lock, all_sent = threading.Lock(), threading.Event()
    with connect(live_cluster.servers, timeout_s=at_most(90), on_retry=told.append) as mq:
        for topic in topics:
            mq.admin.create_topic(topic, queues=3)
        sent: set[str] = set()

        def send() -> None:
            with mq.producer() as producer:
                futures = []
                for n in range(1500):
                    futures.append(producer.send_soon(topics[n % 2], b"%d" % n))
                    time.sleep(0.002)
                outcome = producer.flush()
                sent.update(future.result().message_id for future in futures)
                assert (outcome.stored, outcome.all_stored) == (1500, True)
            all_sent.set()

        def handle() -> None:
            while (message := work.get()) is not None:
                with lock:
                    handled[message.message_id] += 1
                consumer.ack(message)

        def kill() -> None:
            for _ in range(2):
                time.sleep(rng.uniform(0.1, 1.2))
                leader = live_cluster.leader()
                live_cluster.kill(leader)
                live_cluster.restart(leader)

        with mq.consumer(group, topics, manual_ack=True) as consumer:
            workers = [threading.Thread(target=handle) for _ in range(3)]
            sender, killer = threading.Thread(target=send), threading.Thread(target=kill)
            for thread in (*workers, sender, killer):
                thread.start()
            while not all_sent.is_set() or len(handled) < len(sent):
                message = consumer.poll(0.2)
                if message is not None:
                    work.put(message)
            killer.join()
            for _ in workers:
                work.put(None)
            for thread in (*workers, sender):
                thread.join()
        assert handled.keys() >= sent
        assert len(sent) == 1500
        assert set(handled.values()) == {1}, "one consumer kept its queues, and hands out each message once"
        assert sum(offset.lag for topic in topics for offset in mq.admin.offsets(group, topic)) == 0
    assert any(retry.address and retry.cause for retry in told), "the kills were told of"


def committed(mq: Client, group: str, topic: str) -> int:
    return sum(offset.committed or 0 for offset in mq.admin.offsets(group, topic))


def test_what_was_not_acknowledged_comes_again_after_a_killed_leader(live_cluster: Any) -> None:
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        for n in range(20):
            mq.send(topic, b"%d" % n)
        with mq.consumer(group, topic, manual_ack=True) as consumer:
            got = [next(consumer) for _ in range(20)]
            for message in got:
                if message.body not in (b"7", b"11"):
                    consumer.ack(message)
            leader = live_cluster.leader()
            live_cluster.kill(leader)
            consumer.commit()
            live_cluster.restart(leader)
        assert committed(mq, group, topic) == 7
        with mq.consumer(group, topic, follow=False, manual_ack=True) as consumer:
            assert [m.body for m in consumer] == [b"%d" % n for n in range(7, 20)]


def test_a_seek_in_time_reads_again_what_came_since(live_cluster: Any) -> None:
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        sent = [mq.send(topic, b"%d" % n, queue_id=n % 2) for n in range(10)]
        since = datetime.datetime.fromtimestamp(
            mq.admin.view_message(topic, sent[6].position).store_ms / 1000, datetime.UTC
        )
        with mq.consumer(group, topic, max_wait_s=20) as consumer:
            assert len({next(consumer).body for _ in range(10)}) == 10
            consumer.commit()
            assert committed(mq, group, topic) == 10
            consumer.seek(since)
            again = set[bytes]()
            while not again >= {b"%d" % n for n in range(6, 10)}:
                again.add(next(consumer).body)
            assert b"0" not in again, "others may have come within the same millisecond"
            leader = live_cluster.leader()
            live_cluster.kill(leader)
            consumer.seek("earliest", queue_id=0)
            first = next(m for m in consumer if m.queue_id == 0)
            assert first.body == b"0"
            consumer.commit(first)
            live_cluster.restart(leader)
            assert next(o.committed for o in mq.admin.offsets(group, topic) if o.queue_id == 0) == 1


def test_a_position_of_a_topic_that_was_made_again_is_refused(live_cluster: Any) -> None:
    """However many messages the new one has: the offset may be there again."""
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        mq.send_batch(topic, [b"%d" % n for n in range(5)], queue_id=0)
        kept = Position(3, mq.admin.identity(topic))
        with mq.consumer(group, topic, max_wait_s=20) as consumer:
            assert next(consumer).body == b"0"
            consumer.seek(kept, queue_id=0)
            assert next(consumer).body == b"3"
        mq.admin.delete_topic(topic)
        mq.admin.create_topic(topic, queues=1)
        mq.send_batch(topic, [b"new"] * 9, queue_id=0)
        with mq.consumer(fresh("billing"), topic, max_wait_s=20) as consumer:
            assert next(consumer).body == b"new"
            with pytest.raises(ValueError, match=r"offset 3 means nothing in .* which is gone"):
                consumer.seek(kept, queue_id=0)


@pytest.mark.parametrize(
    ("count", "ordered"),
    [(3, False), (9, True), *(pytest.param(*each, marks=pytest.mark.ci) for each in ((9, False), (3, True)))],
)
def test_a_consumer_whose_topic_is_made_again_reads_the_new_one(live_cluster: Any, count: int, ordered: bool) -> None:
    """Whether its offset, 5, lies within the new queue or beyond; its waiting pull is refused after 5 s."""
    topic, group = fresh("orders"), fresh("billing")
    new = [b"new %d" % number for number in range(count)]
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        mq.send_batch(topic, [b"%d" % n for n in range(5)], queue_id=0)
        with mq.consumer(group, topic, ordered=ordered, max_wait_s=60) as consumer:
            assert [next(consumer).body for _ in range(5)] == [b"%d" % n for n in range(5)]
            mq.admin.delete_topic(topic)
            mq.admin.create_topic(topic, queues=1)
            mq.send_batch(topic, new, queue_id=0)
            consumer.commit()
            assert mq.admin.committed(group, topic, 0) is None, "5 counts in the topic that is gone"
            assert [next(consumer).body for _ in new] == new
        assert mq.admin.committed(group, topic, 0) == count


def test_a_group_that_is_not_there_is_made_again_by_the_closing_commit(live_cluster: Any) -> None:
    """As after a heartbeat whose entry an election dropped: the leader lists the member, and has no such group."""
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers, timeout_s=at_most(60)) as mq:
        mq.admin.create_topic(topic, queues=1)
        mq.send_batch(topic, [b"1", b"2"])
        with mq.consumer(group, topic, follow=False) as consumer:
            assert [message.body for message in consumer] == [b"1", b"2"]
            mq.admin.delete_group(group)
        assert group in mq.admin.groups()
        with mq.consumer(group, topic, follow=False) as consumer:
            assert list(consumer) == [], "what was handed out was committed"
