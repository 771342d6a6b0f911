"""Ordered consumers against a scripted cluster: they read under locks, one message at a time, and hand over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.client import Unreachable, aconnect
from raftmq.client.consuming.locked_queues import CONFIRMED_S, QueueLocks
from raftmq.client.consuming.message_buffer import QueueKey
from raftmq.client.environment import REAL, Environment
from raftmq_wire.codes import RequestCode
from raftmq_wire.queue_numbers import FIRST_GROUP, number_of
from tests.support.consumer_parts import share_of
from tests.support.patience import with_times

STRANGER = "another client"


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


SOON = with_times(heartbeat_every_s=0.05, relock_every_s=0.05, dealt_with_every_s=0.01)
"""Consumers ask for their locks often."""


async def test_it_locks_before_it_reads_and_unlocks_when_it_leaves(fake: Any) -> None:
    fake.create("orders", 2)
    fake.fill("orders", 0, bodies(0, 5))
    async with aconnect(fake.servers, environment=SOON) as mq, mq.consumer("billing", "orders", ordered=True) as c:
        assert [(await anext(c)).queue_offset for _ in range(5)] == list(range(5))
        assert sorted(fake.locks) == [("billing", "orders", 0), ("billing", "orders", 1)]
    assert fake.locks == {}
    assert fake.offsets["billing", "orders", 0] == 5


async def test_a_queue_that_another_client_holds_waits(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 2)
    fake.locks["billing", "orders", 1] = STRANGER
    fake.fill("orders", 0, bodies(0, 1))
    fake.fill("orders", 1, bodies(10, 1))
    async with (
        aconnect(fake.servers, environment=SOON) as mq,
        mq.consumer("billing", "orders", ordered=True, max_wait_s=0.3) as c,
    ):
        assert [m.body async for m in c] == [b"0"]
        del fake.locks["billing", "orders", 1]
        assert [m.body async for m in c] == [b"10"]


async def test_a_reader_that_ends_at_the_end_waits_for_every_queue(fake: Any) -> None:
    fake.create("orders", 1)
    fake.locks["billing", "orders", 0] = STRANGER
    fake.fill("orders", 0, bodies(0, 3))
    async with (
        aconnect(fake.servers, environment=SOON) as mq,
        mq.consumer("billing", "orders", ordered=True, follow=False) as c,
    ):
        assert not c.at_end
        asyncio.get_running_loop().call_later(0.1, fake.locks.clear)
        assert [m.body async for m in c] == bodies(0, 3)
        assert c.at_end


async def test_a_lost_lock_ends_the_reading_and_what_was_not_committed_comes_again(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 6))
    async with (
        aconnect(fake.servers, environment=SOON) as mq,
        mq.consumer("billing", "orders", ordered=True, max_wait_s=0.3) as c,
    ):
        assert [(await anext(c)).queue_offset for _ in range(2)] == [0, 1]
        await c.commit()
        assert (await anext(c)).queue_offset == 2
        fake.locks["billing", "orders", 0] = STRANGER
        await wait_until(lambda: not c.positions())
        assert [m async for m in c] == []
        fake.locks.clear()
        assert [m.queue_offset async for m in c] == [2, 3, 4, 5]


async def test_nothing_is_handed_out_or_committed_by_a_lock_that_is_not_confirmed(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 6))
    async with (
        aconnect(fake.servers, environment=SOON) as mq,
        mq.consumer("billing", "orders", ordered=True, max_wait_s=0.2) as c,
    ):
        assert (await anext(c)).queue_offset == 0
        with monkeypatch.context() as patch:
            patch.setattr(QueueLocks, "lock", nobody_answers)
            share_of(c).locks["orders"]._confirmed_s[0] -= CONFIRMED_S
            assert [m async for m in c] == []
            await c.commit()
            assert ("billing", "orders", 0) not in fake.offsets
        assert (await anext(c)).queue_offset == 0, "not committed: it comes again"


async def nobody_answers(locks: QueueLocks, queue_ids: Any) -> frozenset[int]:
    raise Unreachable("no leader", retryable=True)


async def test_a_lock_counts_from_when_it_was_asked_for(fake: Any) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers, environment=SOON) as mq:
        now = 1000.0
        locks = QueueLocks(mq.view, lambda _: mq.view.links, "billing", "orders", "me", lambda: now)
        assert not locks.holds(0)
        assert await locks.lock([0]) == {0}
        now += CONFIRMED_S - 0.01
        assert locks.holds(0)
        now += 0.01
        assert not locks.holds(0)
        assert await locks.lock([0]) == {0}
        assert locks.holds(0)
        await locks.unlock([0])
        assert not locks.holds(0)
        assert fake.locks == {}


async def test_locks_in_a_group_that_has_retired_leave_those_of_the_first_alone(fake: Any) -> None:
    fake.create("orders", 2)
    mine = {("billing", "orders", queue): "me" for queue in range(2)}
    fake.locks.update(mine)
    async with aconnect(fake.servers, environment=SOON) as mq:
        locks = QueueLocks(mq.view, lambda _: mq.view.links, "billing", "orders", "me")
        mq.view.groups.take("1/raft 2/raft-g02")
        mq.view.groups.take("", "2")
        await locks.unlock([number_of(2, 0), 1])
        assert fake.locks == {("billing", "orders", 0): "me"}
        assert await locks.lock([number_of(2, 1)]) == frozenset(), "not queue 1 of the first group"
        assert await locks.lock([0, number_of(2, 1)]) == {0}
        assert fake.locks == {("billing", "orders", 0): "me"}


def named(first_byte: int) -> Environment:
    """Clients whose ids sort by it."""
    return SOON._replace(entropy=lambda size: bytes([first_byte]) + REAL.entropy(size - 1))


async def test_a_queue_is_handed_over_when_its_last_message_is_dealt_with(fake: Any, wait_until: Any) -> None:
    """The newcomer's id sorts first, so that queue 0 becomes its own while the other is at a message of that queue."""
    fake.create("orders", 2)
    fake.fill("orders", 0, bodies(0, 3))
    async with (
        aconnect(fake.servers, environment=named(9)) as old,
        aconnect(fake.servers, environment=named(1)) as new,
        old.consumer("billing", "orders", ordered=True, max_wait_s=0.3) as first,
    ):
        assert (await anext(first)).queue_offset == 0
        async with new.consumer("billing", "orders", ordered=True, max_wait_s=0.3) as second:
            await wait_until(lambda: first.positions().keys() == {1})
            assert [m async for m in second] == []
            assert fake.locks["billing", "orders", 0] == share_of(first).member.client_id
            assert [m async for m in first] == [], "asking for the next says that the one before is dealt with"
            assert [m.queue_offset async for m in second] == [1, 2]
            assert fake.locks["billing", "orders", 0] == share_of(second).member.client_id
    assert fake.offsets["billing", "orders", 0] == 3
    assert fake.commits.count(("billing", 0, 1)) == 1


async def test_no_lock_is_asked_for_behind_the_unlock_of_the_same_queue(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 2)
    fake.fill("orders", 0, bodies(0, 2))
    asked, goes_on = asyncio.Event(), asyncio.Event()
    async with (
        aconnect(fake.servers, environment=named(9)) as old,
        aconnect(fake.servers, environment=named(1)) as new,
        old.consumer("billing", "orders", ordered=True, max_wait_s=0.2) as first,
    ):
        assert (await anext(first)).queue_offset == 0
        locks = share_of(first).locks["orders"]
        lock = locks.lock

        async def slow(queue_ids: Any) -> frozenset[int]:
            if ("orders", 0) in share_of(first).leaving:
                asked.set()
                await goes_on.wait()
            return await lock(queue_ids)

        locks.lock = slow  # type: ignore[method-assign]
        async with new.consumer("billing", "orders", ordered=True, max_wait_s=5.0) as second:
            await asked.wait()
            assert [m async for m in first] == [], "the message in hand is dealt with"
            goes_on.set()
            assert (await anext(second)).queue_offset == 1
            client, requests = share_of(first).member.client_id, fake.lock_requests
            unlocked = requests.index((int(RequestCode.UNLOCK_BATCH_MQ), client, (0,)))
            await wait_until(lambda: (int(RequestCode.LOCK_BATCH_MQ), client, (1,)) in requests[unlocked:])
            assert [row for row in requests[unlocked + 1 :] if row[1] == client and 0 in row[2]] == []


async def test_a_queue_that_is_unlocked_while_a_lock_is_waited_for_is_not_locked_again(fake: Any) -> None:
    fake.create("orders", 2)
    async with aconnect(fake.servers, environment=SOON) as mq, mq.consumer("billing", "orders", ordered=True) as c:
        share = share_of(c)
        for task in share.tasks:
            task.cancel()
        key = QueueKey("orders", 0)
        share.leaving[key] = share.feeds.pop(key)
        fake.lock_requests.clear()
        async with share.locking:
            locking = asyncio.create_task(share.locked([QueueKey("orders", 1)]))
            for _ in range(5):
                await asyncio.sleep(0)
            share.feeds[key] = share.leaving.pop(key)  # as its hand-over does, which holds the lock meanwhile
        await locking
        assert [queues for _, _, queues in fake.lock_requests] == [(1,)]


async def test_closing_deals_with_what_is_handed_over(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 2)
    fake.fill("orders", 0, bodies(0, 3))
    async with aconnect(fake.servers, environment=named(9)) as old, aconnect(fake.servers, environment=named(1)) as new:
        async with old.consumer("billing", "orders", ordered=True) as first:
            assert (await anext(first)).queue_offset == 0
            second = new.consumer("billing", "orders", ordered=True, max_wait_s=0.3)
            await second.open()
            await wait_until(lambda: first.positions().keys() == {1})
        assert fake.offsets["billing", "orders", 0] == 1
        assert [m.queue_offset async for m in second] == [1, 2]


async def test_commits_say_who_makes_them(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 1))
    said: list[str] = []

    def heard(link: Any, opaque: int, ext: dict[str, str], body: bytes) -> None:
        said.append(ext.get("raftmqClients", ""))
        link.on_other(RequestCode.UPDATE_CONSUMER_OFFSET, opaque, ext, body)

    fake.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = heard
    async with aconnect(fake.servers, environment=SOON) as mq:
        for ordered in (True, False):
            async with mq.consumer(f"billing-{ordered}", "orders", ordered=ordered) as c:
                await anext(c)
                name = share_of(c).member.client_id
            assert said.pop() == (f'["{name}"]' if ordered else "")


async def test_a_group_of_brokers_that_does_not_answer_keeps_no_lock_in_another() -> None:
    """Whoever leaves gives back what it can."""
    asked: list[int] = []

    def of(group: int) -> Any:
        async def call(code: int, *_: Any, **__: Any) -> None:
            assert code == RequestCode.UNLOCK_BATCH_MQ
            if group == FIRST_GROUP:
                raise Unreachable("no leader", retryable=True)
            asked.append(group)

        return SimpleNamespace(call=call)

    view: Any = SimpleNamespace(groups=SimpleNamespace(known=of))
    links: Any = lambda group: None  # noqa: E731
    locks = QueueLocks(view, links, "billing", "orders", "c")
    with pytest.raises(Unreachable):
        await locks.unlock([number_of(group, 0) for group in (FIRST_GROUP, 2, 3)])
    assert sorted(asked) == [2, 3]
