"""A topic that is deleted and created again under a consumer: its positions mean nothing in the new topic, of which no
message is skipped."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from raftmq.client import Denied, NotFound, aconnect
from raftmq_wire.codes import RequestCode
from raftmq_wire.topic_identity import Position
from tests.support.consumer_parts import share_of
from tests.support.patience import with_times

OLD = [b"old %d" % n for n in range(20)]
NEW = [b"new %d" % n for n in range(30)]
STARTS = ["earliest", "latest", 20, datetime.datetime.fromtimestamp(1_600_000_000, tz=datetime.UTC)]


def make_again(fake: Any, queues: int = 1, bodies: list[bytes] = NEW) -> None:
    """Deletes the topic and creates it, with more messages than the old one had unless the test says otherwise."""
    fake.delete("orders")
    fake.create("orders", queues)
    fake.fill("orders", 0, bodies)


async def take(consumer: Any, count: int) -> list[bytes]:
    return [(await anext(consumer)).body for _ in range(count)]


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("count", [5, 20, 30])
async def test_a_running_consumer_begins_with_the_new_topic(
    fake: Any, caplog: pytest.LogCaptureFixture, start: Any, count: int
) -> None:
    """Whether the old offset is beyond the new queue, at its end or within it."""
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    fake.offsets["billing", "orders", 0] = 0
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", start=start) as c:
        assert await take(c, len(OLD)) == OLD
        make_again(fake, bodies=NEW[:count])
        assert await take(c, count) == NEW[:count]
        assert c.positions() == {0: count}
    assert fake.offsets["billing", "orders", 0] == count
    (told,) = [each.getMessage() for each in caplog.records if "and goes on at 0" in each.getMessage()]
    assert told.startswith("group billing was at offset 20 of orders queue 0")
    assert "which is gone" in told


async def test_the_topic_may_be_missing_for_a_while(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        assert await take(c, len(OLD)) == OLD
        fake.delete("orders")
        await wait_until(lambda: sum(node.calls.count(RequestCode.GET_MIN_OFFSET) for node in fake.nodes) > 3)
        fake.create("orders", 1)
        fake.fill("orders", 0, NEW)
        assert await take(c, len(NEW)) == NEW


async def test_a_topic_that_stays_away_ends_the_reading(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers, environment=with_times(gone_s=0.1)) as mq:
        c = await mq.consumer("billing", "orders").open()
        assert await take(c, len(OLD)) == OLD
        fake.delete("orders")
        with pytest.raises(NotFound):
            await anext(c)
        await c.close(commit=False)


async def test_a_new_topic_that_may_not_be_read_ends_the_reading(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers) as mq:
        c = await mq.consumer("billing", "orders").open()
        assert await take(c, len(OLD)) == OLD
        fake.handlers[RequestCode.GET_MIN_OFFSET] = lambda link, opaque, ext, body: link.reply(opaque, 16)
        make_again(fake)
        with pytest.raises(Denied):
            await anext(c)
        await c.close(commit=False)


@pytest.mark.parametrize("queues", [1, 4])
async def test_the_new_topic_may_have_other_queues(fake: Any, wait_until: Any, queues: int) -> None:
    fake.create("orders", 2)
    fake.fill("orders", 1, OLD)
    times = with_times(gone_s=-1.0)
    async with aconnect(fake.servers, environment=times) as mq, mq.consumer("billing", "orders") as c:
        assert await take(c, len(OLD)) == OLD
        make_again(fake, queues)
        assert await take(c, len(NEW)) == NEW
        await wait_until(lambda: sorted(c.positions()) == list(range(queues)))


async def test_follow_ends_at_the_end_of_the_new_topic(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD[:10])
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", follow=False) as c:
        first = await anext(c)
        make_again(fake)
        left = [message.body async for message in c]
    assert first.body == OLD[0]
    assert left[-len(NEW) :] == NEW


@pytest.mark.parametrize("kind", ["ack", "commit"])
async def test_a_message_of_the_old_topic_acknowledges_none_of_the_new(fake: Any, kind: str) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", manual_ack=kind == "ack") as c:
        old = [await anext(c) for _ in OLD]
        make_again(fake)
        assert await take(c, 3) == NEW[:3]
        for message in old:
            if kind == "ack":
                c.ack(message)
            else:
                await c.commit(message)
        assert c.positions() == {0: 0 if kind == "ack" else 3}
        assert ("billing", "orders", 0) not in fake.offsets


async def test_a_commit_of_the_old_topic_moves_nothing_in_the_new(fake: Any) -> None:
    """The consumer has not noticed yet: its next pull waits."""
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers) as mq:
        c = await mq.consumer("billing", "orders").open()
        assert await take(c, len(OLD)) == OLD
        await share_of(c).stop()
        make_again(fake)
        await c.commit()
        assert fake.offsets == {}
        with pytest.raises(NotFound):
            await mq.admin.commit("billing", "orders", 0, Position(3, fake.ids["orders"]._replace(topic_id=1)))
        await mq.admin.commit("billing", "orders", 0, Position(3, fake.ids["orders"]))
        assert fake.offsets == {("billing", "orders", 0): 3}
        await c.close(commit=False)


async def test_what_a_program_keeps_is_refused_in_the_new_topic(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers) as mq:
        async with mq.consumer("billing", "orders") as c:
            messages = [await anext(c) for _ in range(5)]
            kept = c.bookmarks()
            assert kept == {0: Position(5, fake.ids["orders"])}
            await c.seek(messages[2])
            assert await take(c, 1) == OLD[2:3]
            await c.seek(kept[0], queue_id=0)
            assert await take(c, 1) == OLD[5:6]
        make_again(fake)
        async with mq.consumer("billing", "orders") as c:
            assert await take(c, 1) == NEW[:1]
            with pytest.raises(ValueError, match="offset 5 means nothing in orders queue 0"):
                await c.seek(kept[0], queue_id=0)
            for message in (messages[2], messages[4]):
                with pytest.raises(ValueError, match="is not in orders queue 0 any more"):
                    await c.seek(message)
            assert await take(c, 1) == NEW[1:2]


async def test_nodes_that_tell_no_identity_are_read_as_before(fake: Any) -> None:
    fake.create("orders", 1)
    fake.ids.clear()
    fake.fill("orders", 0, OLD)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        assert await take(c, 3) == OLD[:3]
        assert c.bookmarks() == {0: Position(3)}
    assert fake.offsets == {("billing", "orders", 0): 3}
