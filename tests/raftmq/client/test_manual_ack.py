"""Acknowledging each message: a commit stops before the first message that is not acknowledged."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raftmq.client import Failed, Message, aconnect, connect
from raftmq.client.consuming.message_buffer import MAX_UNACKED
from tests.support.patience import with_times


async def take(consumer: Any, count: int) -> list[Message]:
    return [await anext(consumer) for _ in range(count)]


def filled(fake: Any, count: int, queues: int = 1) -> None:
    fake.create("orders", queues)
    for queue_id in range(queues):
        fake.fill("orders", queue_id, [b"%d" % n for n in range(count)])


async def test_a_commit_stops_before_the_first_message_that_is_not_acknowledged(fake: Any) -> None:
    filled(fake, 6)
    async with aconnect(fake.servers) as mq:
        async with mq.consumer("billing", "orders", manual_ack=True) as c:
            got = await take(c, 6)
            for n in (0, 1, 3, 5, 3):
                c.ack(got[n])
            assert c.positions() == {0: 2}
            await c.commit()
            assert fake.offsets["billing", "orders", 0] == 2
            c.ack(got[2])
            assert c.positions() == {0: 4}
        assert fake.offsets["billing", "orders", 0] == 4
        async with mq.consumer("billing", "orders", follow=False, manual_ack=True) as c:
            assert [m.queue_offset async for m in c] == [4, 5]


async def test_acknowledged_messages_are_committed_now_and_then(fake: Any, wait_until: Any) -> None:
    filled(fake, 3)
    times = with_times(commit_every_s=0.01)
    async with (
        aconnect(fake.servers, environment=times) as mq,
        mq.consumer("billing", "orders", manual_ack=True) as c,
    ):
        got = await take(c, 3)
        c.ack(got[0])
        await wait_until(lambda: fake.offsets.get(("billing", "orders", 0)) == 1)
        c.ack(got[1])
        await wait_until(lambda: fake.offsets["billing", "orders", 0] == 2)


async def test_a_commit_of_a_message_covers_its_queue_up_to_it(fake: Any) -> None:
    filled(fake, 5, queues=2)
    async with aconnect(fake.servers) as mq:
        for manual in (False, True):
            fake.offsets.clear()
            async with mq.consumer("billing", "orders", follow=False, manual_ack=manual) as c:
                got = [m async for m in c]
                third = next(m for m in got if (m.queue_id, m.queue_offset) == (1, 2))
                await c.commit(third)
                assert {key[2]: at for key, at in fake.offsets.items()} == {1: 3}
                await c.close(commit=False)


async def test_a_commit_of_a_message_whose_queue_is_gone_says_so(fake: Any, wait_until: Any) -> None:
    filled(fake, 3, queues=2)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", manual_ack=True) as first:
        got = await take(first, 6)
        async with mq.consumer("billing", "orders") as second:
            await wait_until(lambda: len(first.positions()) == 1)
            (lost,) = second.positions()
            message = next(m for m in got if m.queue_id == lost)
            with pytest.raises(Failed, match="has gone to another member of billing"):
                await first.commit(message)
            first.ack(message)  # harms nothing
            assert await second.poll(20) is not None, "what was not acknowledged comes again"


async def test_a_retry_acknowledges(fake: Any) -> None:
    filled(fake, 3)
    fake.handlers[36] = lambda connection, opaque, ext, body: connection.reply(opaque)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", manual_ack=True) as c:
        got = await take(c, 3)
        await c.retry(got[0])
        await c.dead_letter(got[1])
        assert c.positions() == {0: 2}
        await c.seek(got[0])
        assert (await anext(c)).queue_offset == 0
        assert c.positions() == {0: 0}


async def test_too_many_unacknowledged_messages_wait(fake: Any) -> None:
    filled(fake, MAX_UNACKED + 6)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", manual_ack=True) as c:
        got = await take(c, MAX_UNACKED)
        assert await c.poll(0.05) is None
        waiting = asyncio.create_task(anext(c))
        await asyncio.sleep(0)
        c.ack(got[3])
        assert (await waiting).queue_offset == MAX_UNACKED
        assert await c.poll(0.05) is None


def test_threads_acknowledge_in_any_order(fake_in_thread: Any) -> None:
    filled(fake_in_thread, 400, queues=4)
    handled: set[tuple[int, int]] = set()
    lock = threading.Lock()
    with (
        connect(fake_in_thread.servers) as mq,
        ThreadPoolExecutor(8) as pool,
        mq.consumer("billing", "orders", follow=False, manual_ack=True) as c,
    ):

        def work(message: Message) -> None:
            with lock:
                handled.add((message.queue_id, message.queue_offset))
            c.ack(message)

        for message in c:
            pool.submit(work, message)
        pool.shutdown(wait=True)
        assert set(c.positions().values()) == {400}
    assert len(handled) == 1600
    assert {at for (group, *_), at in fake_in_thread.offsets.items() if group == "billing"} == {400}


async def test_acknowledging_has_to_be_asked_for(fake: Any) -> None:
    filled(fake, 2)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(ValueError, match="leave out manual_ack, or ordered"):
            mq.consumer("billing", "orders", ordered=True, manual_ack=True)
        async with mq.consumer("billing", "orders") as c:
            with pytest.raises(RuntimeError, match="made with manual_ack=True"):
                c.ack(await anext(c))
