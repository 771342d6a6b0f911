"""Several topics in one consumer, seeks, and reading without a `with` block."""

from __future__ import annotations

import datetime
import json
from typing import Any
from unittest.mock import AsyncMock

import pytest

from raftmq.client import Failed, Message, NotFound, aconnect, connect
from raftmq.client.consuming.message_buffer import QueueFeed
from raftmq.client.route import GroupQueues, route_over
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import number_of
from tests.support.consumer_parts import share_of


def bodies(name: str, count: int) -> list[bytes]:
    return [f"{name}{n}".encode() for n in range(count)]


async def take(consumer: Any, count: int) -> list[Message]:
    return [await anext(consumer) for _ in range(count)]


async def test_one_consumer_reads_several_topics_and_commits_each(fake: Any) -> None:
    for topic, queues in (("orders", 2), ("refunds", 3)):
        fake.create(topic, queues)
        for queue_id in range(queues):
            fake.fill(topic, queue_id, bodies(f"{topic}-{queue_id}-", 2))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", ["orders", "refunds"], follow=False) as c:
        got = [(m.topic, m.body) async for m in c]
        assert c.positions("orders") == {0: 2, 1: 2}
        assert c.positions("refunds") == {0: 2, 1: 2, 2: 2}
        with pytest.raises(ValueError, match=r"several topics: positions\(topic\), one of orders, refunds"):
            c.positions()
        with pytest.raises(ValueError, match="does not read invoices but orders, refunds"):
            c.positions("invoices")
    assert len(got) == len(set(got)) == 10
    assert all(body.startswith(topic.encode()) for topic, body in got)
    committed = {(topic, queue): at for (group, topic, queue), at in fake.offsets.items() if group == "billing"}
    assert committed == {(t, q): 2 for t, n in (("orders", 2), ("refunds", 3)) for q in range(n)}


async def test_a_queue_of_a_group_of_brokers_that_has_retired_is_read_from_no_other(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies("a", 3))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        assert [m.body for m in await take(c, 3)] == bodies("a", 3)
        mq.view.groups.take("1/raft 2/raft-g02")
        mq.view.groups.take("", "2")
        share_of(c).rebalance.clear()
        old = route_over("orders", [GroupQueues(1, "raft", 1, 1), GroupQueues(2, "raft-g02", 1, 1)], 0, True)
        with monkeypatch.context() as patched:  # a node that has not heard of it yet
            patched.setattr(mq.view, "route", AsyncMock(return_value=old))
            await share_of(c)._keep_pulling(QueueFeed("orders", number_of(2, 0), 0))
        assert share_of(c).rebalance.is_set(), "the next route says what is there"
        fake.fill("orders", 0, bodies("b", 1))
        assert [m.body for m in await take(c, 1)] == bodies("b", 1)


async def test_ordered_consumers_lock_the_queues_of_each_topic(fake: Any) -> None:
    for topic in ("orders", "refunds"):
        fake.create(topic, 1)
        fake.fill(topic, 0, bodies(topic, 2))
    async with (
        aconnect(fake.servers) as mq,
        mq.consumer("billing", ("orders", "refunds"), ordered=True, follow=False) as c,
    ):
        got = [m.body async for m in c]
        assert {key[1] for key in fake.locks} == {"orders", "refunds"}
    assert sorted(got) == sorted(bodies("orders", 2) + bodies("refunds", 2))
    assert fake.locks == {}


async def test_a_topic_that_is_missing_is_named(fake: Any) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(NotFound, match="refunds"):
            await mq.consumer("billing", ["orders", "refunds"]).open()
        for wrong in ([], [""], ""):
            with pytest.raises(ValueError, match="a group and a topic"):
                mq.consumer("billing", wrong)


async def test_a_seek_goes_back_and_forth_and_the_commit_follows(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies("", 20))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        got = await take(c, 12)
        await c.commit()
        await c.seek(3, queue_id=0)
        assert c.positions() == {0: 3}
        assert [m.queue_offset for m in await take(c, 2)] == [3, 4]
        await c.commit()
        assert fake.offsets["billing", "orders", 0] == 5, "a commit goes back after a seek"
        await c.seek(got[7])
        assert (await anext(c)).body == b"7"
        await c.seek("latest")
        assert await c.poll(0.05) is None
        fake.fill("orders", 0, [b"new"])
        assert (await anext(c)).body == b"new"
        await c.seek("earliest")
        assert (await anext(c)).body == b"0"
        await c.seek(datetime.datetime.fromtimestamp(got[10].store_ms / 1000, datetime.UTC))
        assert (await anext(c)).body == b"10"
    assert fake.offsets["billing", "orders", 0] == 11


async def test_a_seek_moves_only_the_queues_that_it_names(fake: Any) -> None:
    for topic in ("orders", "refunds"):
        fake.create(topic, 2)
        for queue_id in range(2):
            fake.fill(topic, queue_id, bodies("", 4))
    async with (
        aconnect(fake.servers) as mq,
        mq.consumer("billing", ["orders", "refunds"], follow=False) as c,
    ):
        assert len([m async for m in c]) == 16
        await c.seek("earliest", topic="refunds", queue_id=1)
        assert not c.at_end
        assert [(m.topic, m.queue_id, m.queue_offset) async for m in c] == [("refunds", 1, n) for n in range(4)]
        await c.seek("earliest", topic="orders")
        assert sorted([(m.topic, m.queue_id) async for m in c]) == [("orders", q) for q in (0, 1) for _ in range(4)]


async def test_a_seek_that_cannot_be_is_refused_and_moves_nothing(fake: Any) -> None:
    fake.create("orders", 2)
    fake.create("other", 1)
    fake.fill("orders", 0, bodies("", 4))
    fake.fill("other", 0, [b"x"])
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        foreign = (await mq.pull("other", 0, 0)).messages[0]
        for to, options, said in (
            (2, {}, "give queue_id="),
            (9, {"queue_id": 0}, "orders queue 0 has offsets 0 to 4, and 9 is outside"),
            ("earliest", {"queue_id": 7}, "reads no such queue at present; it reads orders queue 0, orders queue 1"),
            ("earliest", {"topic": "other"}, "reads no such queue"),
            ("now", {}, "start='now'"),
            (foreign, {}, "the message is of other, and this consumer reads orders"),
        ):
            with pytest.raises(ValueError, match=said):
                await c.seek(to, **options)
        assert c.positions() == {0: 0, 1: 0}


@pytest.mark.parametrize("broken", [False, True])
async def test_iterating_without_a_block_opens_and_the_client_closes(fake: Any, broken: bool) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies("", 5))

    async def read() -> None:
        async with aconnect(fake.servers) as mq:
            async for message in mq.consumer("billing", "orders"):
                if message.queue_offset == 2:
                    if broken:
                        raise LookupError("the program's own")
                    break

    if broken:
        with pytest.raises(LookupError):
            await read()
    else:
        await read()
    assert fake.offsets["billing", "orders", 0] == (2 if broken else 3)
    assert fake.members["billing"] == {}


async def test_the_end_of_an_iteration_without_a_block_commits_and_leaves(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies("", 5))
    async with aconnect(fake.servers) as mq:
        consumer = mq.consumer("billing", "orders", follow=False)
        assert len([m async for m in consumer]) == 5
        assert (fake.offsets["billing", "orders", 0], fake.members["billing"]) == (5, {})
        assert [m async for m in consumer] == []
        with pytest.raises(RuntimeError, match="closed; make a new one"):
            await consumer.open()


def test_threads_iterate_without_a_block(fake_in_thread: Any) -> None:
    fake_in_thread.create("orders", 1)
    fake_in_thread.fill("orders", 0, bodies("", 5))
    with connect(fake_in_thread.servers) as mq:
        assert [m.body for m in mq.consumer("billing", ["orders"], follow=False)] == bodies("", 5)
        assert fake_in_thread.offsets["billing", "orders", 0] == 5
        consumer = mq.consumer("billing", "orders", start="earliest", max_wait_s=0.05)
        assert list(consumer) == []
    with connect(fake_in_thread.servers) as mq, mq.consumer("billing", "orders") as consumer:
        consumer.seek("earliest")
        first = next(consumer)
        consumer.seek(first)
        assert (next(consumer).body, consumer.topics) == (b"0", ("orders",))
        consumer.commit(first)
    assert fake_in_thread.offsets["billing", "orders", 0] == 1


async def read_apart(fake: Any) -> dict[str, int]:
    """The messages of each topic that two members get of which each wants one topic, with 10 messages in each queue."""
    got = dict.fromkeys(("orders", "refunds"), 0)
    for topic in got:
        fake.create(topic, 4)
    async with aconnect(fake.servers) as mq, mq.consumer("g", "orders") as one, mq.consumer("g", "refunds") as other:
        while share_of(one).rebalance.is_set() or share_of(other).rebalance.is_set():
            await one.poll(0.05)
        for topic in got:
            for queue_id in range(4):
                fake.fill(topic, queue_id, bodies(topic, 10))
        for consumer in (one, other):
            while (message := await consumer.poll(0.3)) is not None:
                got[message.topic] += 1
    return got


async def test_members_that_want_different_topics_read_all_of_each(fake: Any) -> None:
    fake.wishes = {}
    assert await read_apart(fake) == {"orders": 40, "refunds": 40}


async def test_where_nobody_is_told_what_others_want_the_rule_is_that_of_rocketmq(fake: Any) -> None:
    assert await read_apart(fake) == {"orders": 20, "refunds": 20}


@pytest.mark.parametrize("wish_of", [[0], [0, 0], [7]])
async def test_an_answer_that_makes_no_sense_is_refused(fake: Any, wish_of: list[int]) -> None:
    fake.create("orders", 1)

    def answer(connection: Any, opaque: int, ext: dict[str, str], body: bytes) -> None:
        told = {"consumerIdList": ["x"], "raftmqWishes": [], "raftmqWishOf": wish_of}
        connection.reply(opaque, body=json.dumps(told).encode())

    fake.handlers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = answer
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Failed, match="the answer is not understood"):
            await mq.consumer("g", "orders").open()
