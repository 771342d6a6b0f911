"""Consumers against a scripted cluster: what is handed out, what is committed, who reads which queue."""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client import Denied, Failed, NotFound, Refused, aconnect
from raftmq.client.consuming.group_member import allocate_averagely
from raftmq.client.consuming.pull import PullStatus
from raftmq.client.consuming.subscription import Subscription, normal_tags, split_tags, subscription
from raftmq_wire.codes import RequestCode
from tests.support.patience import with_times


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def read_all(consumer: Any) -> list[Any]:
    return [message async for message in consumer]


async def test_reads_everything_in_queue_order_and_commits_on_leaving(fake: Any) -> None:
    fake.create("orders", 3)
    for queue_id in range(3):
        fake.fill("orders", queue_id, bodies(queue_id * 100, 25))
    async with aconnect(fake.servers) as mq:
        async with mq.consumer("billing", "orders", follow=False) as c:
            got = await read_all(c)
        assert c.positions() == {0: 25, 1: 25, 2: 25}
    for queue_id in range(3):
        mine = [m for m in got if m.queue_id == queue_id]
        assert [m.queue_offset for m in mine] == list(range(25))
        assert [m.body for m in mine] == bodies(queue_id * 100, 25)
    assert fake.offsets == {("billing", "orders", q): 25 for q in range(3)}
    assert fake.members["billing"] == {}


async def test_commit_covers_what_was_handed_out_and_no_more(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 20))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        for _ in range(3):
            await anext(c)
        await c.commit()
        assert fake.offsets["billing", "orders", 0] == 3
        await c.close(commit=False)
    assert fake.offsets["billing", "orders", 0] == 3


async def test_an_exception_leaves_the_message_in_hand_uncommitted(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 20))
    async with aconnect(fake.servers) as mq:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block under test is the consumer's
            async with mq.consumer("billing", "orders") as c:
                for _ in range(3):
                    await anext(c)
                raise ZeroDivisionError
        assert fake.offsets["billing", "orders", 0] == 2
        async with mq.consumer("billing", "orders") as c:
            assert (await anext(c)).queue_offset == 2


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 5),
        ("latest", 20),
        (12, 12),
        (datetime.datetime.fromtimestamp(1_700_000_000.008, tz=datetime.UTC), 7),
    ],
)
async def test_start_is_for_queues_without_an_offset(fake: Any, start: Any, first: int) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 20))
    fake.min_offsets["orders", 0] = 5
    async with aconnect(fake.servers) as mq:
        async with mq.consumer("billing", "orders", start=start, follow=False) as c:
            assert [m.queue_offset for m in await read_all(c)] == list(range(first, 20))
        fake.offsets["other", "orders", 0] = 18
        async with mq.consumer("other", "orders", start=start, follow=False) as c:
            assert [m.queue_offset for m in await read_all(c)] == [18, 19]


@pytest.mark.parametrize("start", ["newest", -1, True, datetime.datetime(2026, 1, 1), 1.5])  # noqa: DTZ001
async def test_a_bad_start_is_named(fake: Any, start: Any) -> None:
    async with aconnect(fake.servers) as mq:
        with pytest.raises(ValueError, match="start="):
            mq.consumer("billing", "orders", start=start)


async def test_tags_are_checked_again_by_name(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 30), tag="old")
    fake.fill("orders", 0, bodies(30, 3), tag="new")
    fake.fill("orders", 0, bodies(33, 9), tag="old")
    async with aconnect(fake.servers) as mq:
        async with mq.consumer("billing", "orders", tags="newest || new", follow=False) as c:
            assert [m.body for m in await read_all(c)] == bodies(30, 3)
        assert fake.offsets["billing", "orders", 0] == 42


async def test_a_following_reader_gets_what_comes_later(fake: Any) -> None:
    fake.create("orders", 2)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        reading = asyncio.create_task(anext(c))
        await asyncio.sleep(0)
        fake.fill("orders", 1, [b"late"])
        assert (await reading).body == b"late"


async def test_max_wait_ends_the_iteration(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 3))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", max_wait_s=0.05) as c:
        assert len(await read_all(c)) == 3


async def test_a_leader_change_neither_skips_nor_repeats(fake: Any) -> None:
    fake.create("orders", 2)
    for queue_id in range(2):
        fake.fill("orders", queue_id, bodies(0, 50))
    got = []
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        async for message in c:
            got.append((message.queue_id, message.queue_offset))
            if len(got) == 30:
                fake.leader = 1
                fake.nodes[0].kill()
            if len(got) == 60:
                for queue_id in range(2):
                    fake.fill("orders", queue_id, bodies(50, 10))
            if len(got) == 120:
                break
    assert sorted(got) == [(q, o) for q in range(2) for o in range(60)]
    assert fake.offsets == {("billing", "orders", q): 60 for q in range(2)}


async def test_a_gap_is_an_error(fake: Any, stored: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 3))
    queue = fake.queues["orders"][0]
    fields = {"nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"}
    body = stored("orders", 0, 0, queue[0]) + stored("orders", 0, 2, queue[2])
    fake.nodes[0].overrides[11] = deque([(0, None, fields, body)])
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Failed, match="expected offset 1 of queue 0, got 2"):
            async with mq.consumer("billing", "orders", follow=False) as c:
                await read_all(c)
    assert fake.offsets == {("billing", "orders", 0): 0}


async def test_retention_is_followed_and_counted(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 20))
    fake.offsets["billing", "orders", 0] = 4
    fake.min_offsets["orders", 0] = 10
    async with aconnect(fake.servers) as mq:
        async with mq.consumer("billing", "orders", follow=False) as c:
            assert [m.queue_offset for m in await read_all(c)] == list(range(10, 20))
        assert c.trimmed == 6


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("committed", [True, False])
async def test_an_offset_beyond_the_end_is_an_error(fake: Any, follow: bool, committed: bool) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 3))
    if committed:
        fake.offsets["billing", "orders", 0] = 9
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Failed, match="orders queue 0 ends at offset 3, group billing is already at 9") as caught:
            async with mq.consumer("billing", "orders", start=9, follow=follow) as c:
                await anext(c)
    assert caught.value.code == 21
    assert "raftmq group reset billing --topic orders --queue 0 --to latest" in caught.value.hint
    fake.offsets["billing", "orders", 0] = 3
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders", follow=False) as c:
        assert await read_all(c) == []


async def test_an_offset_beyond_the_end_of_a_queue_that_is_taken_over_is_an_error(fake: Any) -> None:
    fake.create("orders", 2)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as other:
        fake.fill("orders", 0, bodies(0, 3))
        async with mq.consumer("billing", "orders", follow=False) as c:
            (taken,) = set(range(2)) - c.positions().keys()
            fake.offsets["billing", "orders", taken] = 9
            await other.close(commit=False)
            with pytest.raises(Failed, match=f"queue {taken} ends at offset"):  # noqa: PT012 - it is told at some poll
                for _ in range(200):
                    await c.poll(1.0)
                    await asyncio.sleep(0.01)


async def test_a_member_that_a_new_leader_does_not_list_yet_is_not_at_the_end(fake: Any) -> None:
    """It is listed when it joins, and for once not when it takes its share: it reads when it is listed again."""
    code, asked = RequestCode.GET_CONSUMER_LIST_BY_GROUP, list[str]()

    def listed(link: Any, opaque: int, ext: dict[str, str], body: bytes) -> None:
        asked.append(ext["consumerGroup"])
        if len(asked) == 2:
            link.reply(opaque, body=b'{"consumerIdList": []}')
        else:
            link.on_other(code, opaque, ext, body)

    fake.handlers[code] = listed
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 3))
    soon = with_times(relock_every_s=0.01)
    async with aconnect(fake.servers, environment=soon) as mq, mq.consumer("billing", "orders", follow=False) as c:
        assert len(await read_all(c)) == 3
    assert len(asked) >= 3


async def test_a_queue_that_the_topic_loses_is_committed_and_given_up(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 2)
    for queue_id in range(2):
        fake.fill("orders", queue_id, bodies(0, 2))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as c:
        for _ in range(4):
            await anext(c)
        lost = fake.queues["orders"].pop()
        lost.append(lost[0])  # ends the pull that waits
        fake.grew.set()
        await wait_until(lambda: sorted(c.positions()) == [0])
        await wait_until(lambda: fake.offsets.get(("billing", "orders", 1), 0) >= 1)  # but for the message in hand
        fake.fill("orders", 0, bodies(2, 1))
        assert (await anext(c)).queue_offset == 2


async def test_a_pull_that_is_refused_for_another_reason_ends_the_reading(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 2))
    for node in fake.nodes:
        node.overrides[11] = deque([(29, "no", {}, b"")])
    async with aconnect(fake.servers, environment=with_times(route_pause_s=0.0)) as mq:
        with pytest.raises(Refused, match="no"):
            async with mq.consumer("billing", "orders") as c:
                await anext(c)


async def test_no_such_topic(fake: Any) -> None:
    async with aconnect(fake.servers) as mq:
        with pytest.raises(NotFound):
            async with mq.consumer("billing", "nowhere"):
                pass


async def test_two_members_share_and_take_over(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 4)
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as first:
        assert sorted(first.positions()) == [0, 1, 2, 3]
        async with mq.consumer("billing", "orders") as second:
            await wait_until(lambda: len(first.positions()) == 2 and len(second.positions()) == 2)
            assert sorted([*first.positions(), *second.positions()]) == [0, 1, 2, 3]
        await wait_until(lambda: len(first.positions()) == 4)


async def test_a_released_queue_is_committed_and_handed_out_no_more(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 2)
    for queue_id in range(2):
        fake.fill("orders", queue_id, bodies(0, 6))
    async with aconnect(fake.servers) as mq, mq.consumer("billing", "orders") as first:
        taken = [await anext(first) for _ in range(8)]
        async with mq.consumer("billing", "orders", max_wait_s=0.1) as second:
            await wait_until(lambda: len(first.positions()) == 1)
            first.max_wait_s = 0.1
            rest = [*await read_all(first), *await read_all(second)]
    got = [(m.queue_id, m.queue_offset) for m in (*taken, *rest)]
    assert set(got) == {(q, o) for q in range(2) for o in range(6)}
    assert len(got) <= 13  # at most the message in hand comes again, from the new owner


async def test_pull_asks_the_node_that_is_named(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 5))
    async with aconnect(fake.servers) as mq:
        result = await mq.pull("orders", 0, 2, node=fake.nodes[2].address)
        end = await mq.pull("orders", 0, 5)
    assert (result.status, result.next_offset, result.max_offset) == (PullStatus.FOUND, 5, 5)
    assert [m.body for m in result.messages] == bodies(2, 3)
    assert end.status is PullStatus.END
    assert fake.nodes[2].calls.count(11) == 1
    assert fake.nodes[0].calls.count(11) == 1


async def test_admin(fake: Any) -> None:
    async with aconnect(fake.servers) as mq:
        await mq.admin.create_topic("orders", queues=2)
        assert await mq.admin.topics() == ["orders"]
        fake.fill("orders", 1, bodies(0, 7))
        async with mq.consumer("billing", "orders", follow=False) as c:
            await anext(c)
        offsets = await mq.admin.offsets("billing", "orders")
        assert [(o.queue_id, o.committed, o.lag) for o in offsets] == [(0, 0, 0), (1, 1, 6)]
        assert await mq.admin.groups() == ["billing"]
        with pytest.raises(NotFound):
            await mq.admin.delete_group("nobody")
        await mq.admin.delete_topic("orders")
        with pytest.raises(NotFound):
            await mq.admin.delete_topic("orders")


@given(st.sets(st.text("abc", min_size=1), min_size=1, max_size=7), st.integers(0, 40))
def test_shares_are_a_partition_and_differ_by_at_most_one(members: set[str], queues: int) -> None:
    shares = [list(allocate_averagely(list(members), me, queues)) for me in sorted(members)]
    assert [q for share in shares for q in share] == list(range(queues))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_member_that_is_not_listed_gets_nothing() -> None:
    assert list(allocate_averagely(["a", "b"], "c", 8)) == []


def test_tag_expressions() -> None:
    assert split_tags("a || b||") == {"a", "b"}
    assert split_tags(None) is split_tags("*") is split_tags(" ") is None
    assert normal_tags("b || a") == "a || b"
    assert normal_tags(None) == "*"


def test_a_filter_replaces_tags() -> None:
    assert subscription(None, "price > 10") == subscription("*", "price > 10") == Subscription("SQL92", "price > 10")
    assert subscription("a", None).tags == {"a"}
    assert subscription(None, "a || b").tags is None
    with pytest.raises(ValueError, match="not both"):
        subscription("a", "price > 10")


OFF = ("topic orders may not be read (perm 2)", "consumer group billing may not consume (consumeEnable=false)")
RIGHT = "user shop has no right to Sub on Topic:orders from 10.0.0.9"


def refuses(fake: Any, remark: str, times: int) -> None:
    """Each node refuses so many pulls with code 16."""
    for node in fake.nodes:
        node.overrides[RequestCode.PULL_MESSAGE] = deque([(16, remark, {}, b"")] * times)


@pytest.mark.parametrize("remark", OFF)
async def test_a_consumer_waits_while_its_topic_or_group_is_switched_off(fake: Any, remark: str) -> None:
    """For longer than errors may last, and then it goes on where it stood."""
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 2))
    times = with_times(pull_retry_s=0.1, switched_off_s=0.05)
    async with aconnect(fake.servers, environment=times) as mq, mq.consumer("billing", "orders") as c:
        assert (await anext(c)).body == b"0"
        refuses(fake, remark, 9)
        await c.seek(1, queue_id=0)
        assert await c.poll(0.2) is None
        assert (await anext(c)).body == b"1"
    left = sum([len(node.overrides[RequestCode.PULL_MESSAGE]) for node in fake.nodes])
    assert left == 18, "nine at the leader"


@pytest.mark.parametrize("follow", [True, False])
async def test_a_missing_right_ends_the_consumer(fake: Any, follow: bool) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 1))
    refuses(fake, RIGHT, 1)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Denied, match="no right to Sub") as caught:
            await read_all(mq.consumer("billing", "orders", follow=follow))
    assert not caught.value.switched_off


async def test_who_reads_to_the_end_is_told_that_a_topic_is_switched_off(fake: Any) -> None:
    fake.create("orders", 1)
    fake.fill("orders", 0, bodies(0, 1))
    refuses(fake, OFF[0], 1)
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Denied, match="may not be read") as caught:
            await read_all(mq.consumer("billing", "orders", follow=False))
        assert caught.value.switched_off
        fake.queues["orders"] = []
        with pytest.raises(Denied, match="may not be read") as caught:
            await read_all(mq.consumer("billing", "orders", follow=False))
        assert caught.value.switched_off
