"""The client against three real nodes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from raftmq.client import NotFound, PullStatus, Refused, Unknown, aconnect, connect
from tests.support.wait_until import wait

pytestmark = pytest.mark.live


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


def read_from(mq: Any, topic: str, queue_id: int, node: str) -> list[Any]:
    found: list[Any] = []
    while True:
        result = mq.pull(topic, queue_id, len(found), node=node)
        if result.status is not PullStatus.FOUND:
            return found
        found += result.messages


def test_send_and_read_back(live_cluster: Any) -> None:
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=4)
        sent = [mq.send(topic, b"%d" % n, key=f"k{n}", tag="new", properties={"n": str(n)}) for n in range(50)]
        sent += mq.send_batch(topic, [b"50", b"51", b"52"])
        with mq.consumer(group, topic, follow=False) as c:
            got = list(c)
        assert {(m.queue_id, m.queue_offset, m.position) for m in got} == {r[1:4] for r in sent}
        assert {m.message_id for m in got} == {r.message_id for r in sent}
        by_body = {m.body: m for m in got}
        assert (by_body[b"7"].key, by_body[b"7"].tag, by_body[b"7"].properties["n"]) == ("k7", "new", "7")
        assert sum(o.lag for o in mq.admin.offsets(group, topic)) == 0
        with mq.consumer(group, topic, follow=False) as c:
            assert list(c) == []
        info = mq.admin.describe_topic(topic)
        assert (len(info.queues), info.messages) == (4, 53)
        assert topic in mq.admin.topics()
        assert group in mq.admin.groups()


def test_a_delayed_message_comes_when_it_is_due(live_cluster: Any) -> None:
    topic, group = fresh("reminders"), fresh("readers")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        late = mq.send(topic, b"late", key="k", delay=1.5)
        at_once = mq.send(topic, b"past", deliver_at=1000)
        with mq.consumer(group, topic, max_wait_s=20) as c:
            got = [next(c), next(c)]
        assert [m.body for m in got] == [b"past", b"late"]
        assert got[1].store_ms >= got[0].store_ms
        assert (got[1].message_id, got[1].queue_offset) == (late.message_id, at_once.queue_offset + 1)


def test_a_delayed_message_is_recalled(live_cluster: Any) -> None:
    topic, group = fresh("reminders"), fresh("readers")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        assert mq.send(topic, b"plain").recall_handle == ""
        recalled, kept = [mq.send(topic, body, delay=2) for body in (b"recalled", b"kept")]
        mq.recall(topic, recalled.recall_handle)
        mq.recall(topic, recalled.recall_handle)
        with mq.consumer(group, topic, max_wait_s=20) as c:
            assert [next(c).body, next(c).body] == [b"plain", b"kept"]
        with pytest.raises(Refused, match="due"):
            mq.recall(topic, kept.recall_handle)


def test_d9_messages_are_found_by_key_id_and_position(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=3)
        sent = [mq.send(topic, b"%d" % n, key=[f"order-{n}", "red" if n % 2 else "blue"]) for n in range(20)]
        sent += mq.send_batch(topic, [b"20", b"21"])
        assert [m.body for m in mq.admin.query_messages(topic, "red", count_max=3)] == [b"19", b"17", b"15"]
        (found,) = mq.admin.query_messages(topic, "order-7")
        assert (found.body, found.message_id, found.position) == (b"7", sent[7].message_id, sent[7].position)
        for one in sent:
            (by_id,) = mq.admin.query_messages(topic, one.message_id, unique=True)
            assert by_id == mq.admin.view_message(topic, one.position)
        assert mq.admin.query_messages(topic, "order-7", end_ms=found.store_ms - 1) == []
        assert mq.admin.query_messages(topic, "none") == []
        with pytest.raises(NotFound):
            mq.admin.query_messages(fresh("nowhere"), "red")
        with pytest.raises(NotFound):
            mq.admin.view_message(topic, sent[7].position + 1)


def test_d8_filters_select_by_properties_on_every_node(live_cluster: Any) -> None:
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        for n in range(60):
            mq.send(topic, b"%d" % n, tag="new" if n % 2 else "old", properties={"price": str(n)}, queue_id=n % 2)
        wanted = {b"%d" % n for n in range(41, 60, 2)}
        with mq.consumer(group, topic, filter="price > 40 AND TAGS = 'new'", follow=False) as c:
            assert {m.body for m in c} == wanted
        assert sum(o.lag for o in mq.admin.offsets(group, topic)) == 0, "offsets move past what was not selected"
        for node in live_cluster.nodes:
            eventually_reads(mq, topic, f"127.0.0.1:{node.broker_port}", wanted)
        with (
            pytest.raises(Refused, match="at character 9: unexpected end"),
            mq.consumer(group, topic, filter="price > "),
        ):
            pass
        with pytest.raises(Refused, match="at character 7: unexpected LIKE"):
            mq.pull(topic, 0, 0, filter="price LIKE '4%'")


def read_once_there(mq: Any, topic: str, node: str, count: int) -> list[Any]:
    """What a node has in queue 0, once it has so many messages."""

    def there() -> int:
        return len(read_from(mq, topic, 0, node))

    wait(lambda: there() >= count, lambda: there(), progress=there)
    return list(read_from(mq, topic, 0, node))


def eventually_reads(mq: Any, topic: str, node: str, wanted: set[bytes]) -> None:
    """A follower may lag."""

    def pulled() -> Any:
        return mq.pull(topic, 1, 0, node=node, filter="price BETWEEN 40 AND 99")

    wait(lambda: pulled().next_offset == 30, lambda: str(pulled()), progress=lambda: pulled().next_offset)
    assert {m.body for m in pulled().messages} == wanted


def test_d8_a_waiting_pull_wakes_for_its_filter_only(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(mq.pull, topic, 0, 0, filter="color = 'red'", wait_s=20)
            mq.send(topic, b"blue", properties={"color": "blue"})
            assert not waiting.done()
            mq.send(topic, b"red", properties={"color": "red"})
            result = waiting.result()
        # It may have come after the first message, and is then told at once that nothing matched so far.
        messages = result.messages or mq.pull(topic, 0, result.next_offset, filter="color = 'red'", wait_s=20).messages
        assert [m.body for m in messages] == [b"red"]


def test_d8_tags_of_equal_hashes_are_told_apart(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        for tag in ("Aa", "BB", "C", "Aa"):
            mq.send(topic, tag.encode(), tag=tag)
        read = lambda tags: [m.body for m in mq.pull(topic, 0, 0, tags=tags).messages]  # noqa: E731
        assert read("Aa") == [b"Aa", b"Aa"], "BB has the same hash"
        assert read("BB || C") == [b"BB", b"C"]
        assert read("*") == [b"Aa", b"BB", b"C", b"Aa"]
        with mq.consumer(fresh("g"), topic, tags="Aa||C", follow=False) as c:
            assert [m.body for m in c] == [b"Aa", b"C", b"Aa"]


def test_every_replica_hands_out_the_same_bytes(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        with mq.producer() as p:
            futures = [p.send_soon(topic, b"%d" % n) for n in range(500)]
        assert [f.result().queue_offset for f in futures] == list(range(500))
        for node in live_cluster.nodes:
            address = f"127.0.0.1:{node.broker_port}"
            assert [m.body for m in read_once_there(mq, topic, address, 500)] == [b"%d" % n for n in range(500)]


def test_refusals(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        with pytest.raises(Refused):
            mq.send(topic, b"x", queue_id=99)
        with pytest.raises(Refused):
            mq.send(topic, bytes(5 << 20))
        with pytest.raises(Refused, match=r"limits\.message_bytes_max") as caught:
            mq.send_batch(topic, [bytes(1 << 20)] * 5)
        assert len(caught.value.message_ids) == 5
        with pytest.raises(Refused, match=r"limits\.batch_messages_max"):
            mq.send_batch(topic, [b""] * 5000)
        with pytest.raises(Refused):
            mq.send("SCHEDULE_TOPIC_XXXX", b"x", queue_id=0)
        with pytest.raises(NotFound), mq.consumer("g", fresh("nowhere")):
            pass


def test_every_send_survives_a_killed_leader_once(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=4)
        with mq.producer() as p:
            futures = [p.send_soon(topic, b"%d" % n) for n in range(2000)]
            leader = live_cluster.leader()
            live_cluster.kill(leader)
            futures += [p.send_soon(topic, b"%d" % n) for n in range(2000, 4000)]
        outcomes = [f.exception() for f in futures]
        assert Counter(type(o) for o in outcomes) == {type(None): 4000}
        live_cluster.restart(leader)
        live_cluster.heal()
        leader_address = mq.admin.members()["0"]
        stored = [m for q in range(4) for m in read_from(mq, topic, q, leader_address)]
    assert Counter(m.body for m in stored) == {b"%d" % n: 1 for n in range(4000)}
    where = {(m.queue_id, m.queue_offset): m.body for m in stored}
    assert all(where[f.result()[1:3]] == b"%d" % n for n, f in enumerate(futures))
    for queue_id in range(4):
        order = [int(where[queue_id, o]) for o in range(sum(q == queue_id for q, _ in where))]
        assert order == sorted(order)


def test_a_consumer_goes_on_after_a_killed_leader(live_cluster: Any) -> None:
    topic, group = fresh("orders"), fresh("billing")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        mq.send_batch(topic, [b"%d" % n for n in range(100)], queue_id=0)
        got = []
        with mq.consumer(group, topic) as c:
            for message in c:
                got.append((message.queue_id, message.queue_offset))
                if len(got) == 50:
                    leader = live_cluster.leader()
                    live_cluster.kill(leader)
                    mq.send_batch(topic, [b"%d" % n for n in range(100)], queue_id=1)
                if len(got) == 200:
                    break
        live_cluster.restart(leader)
        live_cluster.heal()
        assert sum(o.lag for o in mq.admin.offsets(group, topic)) == 0
    assert sorted(got) == [(q, o) for q in range(2) for o in range(100)]


def test_ordered_consumers_share_queues_across_a_killed_leader(live_cluster: Any) -> None:
    """No message is given to anybody before the one before it in its queue, and none is missing."""
    topic, group, queues, each = fresh("orders"), fresh("billing"), 4, 30
    seen: list[tuple[int, int, str]] = []
    done = threading.Event()

    def read(name: str) -> None:
        with connect(live_cluster.servers) as mq, mq.consumer(group, topic, ordered=True) as c:
            while not done.is_set():
                message = c.poll(0.1)
                if message is not None:
                    seen.append((message.queue_id, message.queue_offset, name))

    def send_and_wait(mq: Any, batches: int) -> None:
        for queue_id in range(queues):
            mq.send_batch(topic, [b"x"] * each, queue_id=queue_id)
        wait(
            lambda: len({row[:2] for row in seen}) >= queues * each * batches,
            lambda: Counter(row[0] for row in seen),
            progress=lambda: len(seen),
        )

    with connect(live_cluster.servers) as mq, concurrent.futures.ThreadPoolExecutor(2) as readers:
        try:
            mq.admin.create_topic(topic, queues=queues)
            reading = [readers.submit(read, "first")]
            send_and_wait(mq, 1)
            reading.append(readers.submit(read, "second"))
            send_and_wait(mq, 2)
            leader = live_cluster.leader()
            live_cluster.kill(leader)
            send_and_wait(mq, 3)
            live_cluster.restart(leader)
            live_cluster.heal()
            send_and_wait(mq, 4)
        finally:
            done.set()
        for one in reading:
            one.result()
        assert sum(o.lag for o in mq.admin.offsets(group, topic)) == 0
    assert {row[2] for row in seen[-queues * each :]} == {"first", "second"}
    due = dict.fromkeys(range(queues), 0)
    for queue_id, offset, name in seen:
        assert offset <= due[queue_id], f"{name} read {offset} of queue {queue_id} before {due[queue_id]}"
        due[queue_id] = max(due[queue_id], offset + 1)
    assert due == dict.fromkeys(range(queues), 4 * each)


def test_j4_what_is_retried_comes_again_not_earlier_and_in_the_end_is_a_dead_letter(live_cluster: Any) -> None:
    topic, group, clock = fresh("orders"), fresh("billing"), fresh("clock")
    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=2)
        sent = mq.send(topic, b"poor", key="42", tag="new", properties={"n": "1"})
        with mq.consumer(group, topic, max_retries=1) as c:
            first = next(c)
            before = mq.admin.view_message(clock, mq.send(clock, b"x").position).store_ms
            c.retry(first, after=1)
            mq.send(topic, b"sound")
            sound, again = next(c), next(c)
            c.retry(again, level=1)
            c.dead_letter(sound)
        assert (sound.body, again.body, again.topic) == (b"sound", b"poor", topic)
        assert (again.message_id, again.key, again.tag) == (sent.message_id, "42", "new")
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        assert again.store_ms >= before + 1000, "log time"
        dead = mq.pull(f"%DLQ%{group}", 0, 0, wait_s=10).messages
        assert sorted((m.body, m.reconsume_times) for m in dead) == [(b"poor", 2), (b"sound", 1)]
        with mq.consumer(group, topic, follow=False) as c:
            assert list(c) == [], "all of it was dealt with"


def test_j4_a_function_that_fails_has_its_message_again_after_a_killed_leader(live_cluster: Any) -> None:
    topic, group, count = fresh("orders"), fresh("billing"), 20
    attempts: Counter[bytes] = Counter()
    handled: Counter[bytes] = Counter()

    def handle(message: Any) -> None:
        attempts[message.body] += 1
        if attempts[message.body] == 1 and int(message.body) % 2:
            if attempts.total() == count:
                live_cluster.kill(leader)
            c.retry(message, after=1)
            return
        handled[message.body] += 1
        if handled.total() == count:
            raise KeyboardInterrupt

    with connect(live_cluster.servers) as mq:
        mq.admin.create_topic(topic, queues=1)
        leader = live_cluster.leader()
        mq.send_batch(topic, [b"%d" % n for n in range(count)])
        with mq.consumer(group, topic) as c, pytest.raises(KeyboardInterrupt):
            c.run(handle)
    live_cluster.restart(leader)
    live_cluster.heal()
    assert handled == {b"%d" % n: 1 for n in range(count)}
    assert attempts.total() == count + count // 2


def test_without_a_majority_the_outcome_is_not_ok(live_cluster: Any) -> None:
    topic = fresh("orders")
    with connect(live_cluster.servers, timeout_s=4) as mq:
        mq.admin.create_topic(topic, queues=1)
        leader = live_cluster.leader()
        others = [node.id for node in live_cluster.nodes if node.id != leader]
        for node in others:
            live_cluster.kill(node)
        try:
            with pytest.raises((Unknown, Refused)) as caught:
                mq.send(topic, b"x")
        finally:
            for node in others:
                live_cluster.restart(node)
            live_cluster.heal()
        stored = [m.body for m in read_from(mq, topic, 0, mq.admin.members()["0"])]
        assert stored in ([], [b"x"]) if isinstance(caught.value, Unknown) else stored == []


async def test_asyncio_client(live_cluster: Any) -> None:
    topic, group = fresh("orders"), fresh("billing")
    async with aconnect(live_cluster.servers) as mq:
        await mq.admin.create_topic(topic, queues=2)
        results = await asyncio.gather(*[mq.send(topic, b"%d" % n) for n in range(20)])
        async with mq.consumer(group, topic, follow=False) as c:
            got = [message async for message in c]
            await c.commit()
    assert {m.message_id for m in got} == {r.message_id for r in results}
