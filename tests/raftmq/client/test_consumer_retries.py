"""The way of a message that a consumer could not handle: it is sent back, comes again, and blocks no other. The cluster
is scripted."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raftmq
from raftmq.client import Failed, Message, Refused, Unknown, aconnect
from raftmq.client.consuming.message_buffer import Batch, Inbox, QueueFeed, QueueKey
from raftmq.client.consuming.send_back import LEVELS_S, level_of
from raftmq.client.message import MAX_INFLATED_BYTES
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.raftmq.client.conftest import FakeCluster, FakeConnection, Step, Stored
from tests.support.consumer_parts import share_of
from tests.support.pace import at_most
from tests.support.patience import with_times

GROUP, TOPIC = "billing", "orders"
RETRIES = f"%RETRY%{GROUP}"


class SendBacks:
    """The cluster's side of 36: a copy is in the retry topic at once. `steps` script the next requests."""

    def __init__(self, fake: FakeCluster) -> None:
        self.fake = fake
        self.asked: list[dict[str, str]] = []
        self.kept: set[str] = set()
        self.steps: deque[Step] = deque()
        fake.handlers[RequestCode.CONSUMER_SEND_MSG_BACK] = self.take

    def take(self, connection: FakeConnection, opaque: int, ext: dict[str, str], body: bytes) -> None:
        step = self.steps.popleft() if self.steps else Step()
        self.asked.append(ext)
        if step.store and ext["offset"] not in self.kept and ext["delayLevel"] != "-1":
            self.kept.add(ext["offset"])
            properties = f"UNIQ_KEY\x01{ext['originMsgId']}\x02RETRY_TOPIC\x01{ext['originTopic']}\x02"
            self.fake.queues[RETRIES][0].append(Stored(b"again", properties, 1_700_000_000_000))
            self.fake.grew.set()
        if step.close:
            connection.transport.abort()
        elif step.code is not None:
            connection.reply(opaque, step.code, remark=step.remark)

    @property
    def failed(self) -> list[tuple[int, int]]:
        """(position, delay level) of each report."""
        return [(int(ext["offset"]), int(ext["delayLevel"])) for ext in self.asked]


@pytest.fixture
def backs(fake: Any) -> SendBacks:
    fake.create(TOPIC, 2)
    fake.create(RETRIES, 1)
    return SendBacks(fake)


SOON = with_times(heartbeat_every_s=0.05, relock_every_s=0.05)
"""Ordered consumers ask for their locks often."""


async def take(c: Any, count: int) -> list[Message]:
    """The next messages; the test's own timeout is the limit."""
    return [await anext(c) for _ in range(count)]


async def run_until(c: Any, handle: Any, met: Callable[[], bool]) -> None:
    """Runs `handle` until `met`, then closes the consumer."""
    running = asyncio.create_task(c.run(handle))
    while not met() and not running.done():
        await asyncio.sleep(0.005)
    await c.close()
    await running


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


@given(st.floats(0, LEVELS_S[-1]))
def test_the_level_is_the_shortest_that_is_long_enough(after: float) -> None:
    level = level_of(after, None)
    assert LEVELS_S[level - 1] >= after
    assert level == 1 or LEVELS_S[level - 2] < after
    assert level_of(timedelta(seconds=after), None) <= level


def test_levels() -> None:
    assert [level_of(after, None) for after in (0, 1, 1.5, 5, 61, 7200)] == [1, 1, 2, 2, 6, 18]
    assert [level_of(None, level) for level in (None, 1, 18)] == [0, 1, 18]
    for after, level in ((7201, None), (-1, None), (float("nan"), None), (None, 0), (None, 19), (1, 1)):
        with pytest.raises(ValueError, match=r"after|level"):
            level_of(after, level)


async def test_a_message_that_is_retried_is_committed_and_comes_again(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 3))
    async with aconnect(fake.servers) as mq:
        async with mq.consumer(GROUP, TOPIC, max_retries=4) as c:
            first = await anext(c)
            await c.retry(first, after=45)
            rest = await take(c, 3)
        assert [m.body for m in rest if m.body != b"again"] == bodies(1, 2)
        (again,) = [m for m in rest if m.body == b"again"]
        assert (again.topic, again.message_id) == (TOPIC, first.message_id)
        assert c.positions() == {0: 3, 1: 0}
    (asked,) = backs.asked
    assert asked == {
        "group": GROUP,
        "offset": str(first.position),
        "delayLevel": "5",
        "originMsgId": first.message_id,
        "originTopic": TOPIC,
        "unitMode": "false",
        "maxReconsumeTimes": "4",
    }
    assert fake.offsets == {(GROUP, TOPIC, 0): 3, (GROUP, TOPIC, 1): 0, (GROUP, RETRIES, 0): 1}


async def test_retries_from_before_it_came_are_not_skipped(fake: Any, backs: SendBacks) -> None:
    """Whatever `start` says of the topic. One that is retried again is named by its own position."""
    fake.fill(TOPIC, 0, bodies(0, 3))
    fake.queues[RETRIES][0] += [Stored(b"old", f"RETRY_TOPIC\x01{TOPIC}\x02", 0)] * 2
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, start="latest") as c:
        assert await anext(c)
        second = await anext(c)
        await c.retry(second)
    assert (second.body, second.topic, second.position) == (b"old", TOPIC, 1000)
    assert (backs.failed, backs.asked[0]["originTopic"]) == ([(1000, 0)], TOPIC)
    assert "maxReconsumeTimes" not in backs.asked[0]


async def test_a_reader_that_ends_at_the_end_reads_the_retries_that_are_there(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 1, bodies(0, 2))
    fake.queues[RETRIES][0] += [Stored(b"old", "", 0)]
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, follow=False) as c:
        got = [m.body async for m in c]
        assert (sorted(got), c.at_end) == ([b"0", b"1", b"old"], True)


async def test_members_share_the_retries(fake: Any, backs: SendBacks, wait_until: Any) -> None:
    fake.create(RETRIES, 2)
    async with (
        aconnect(fake.servers) as mq,
        mq.consumer(GROUP, TOPIC) as one,
        mq.consumer(GROUP, TOPIC) as other,
    ):
        await wait_until(lambda: len(one.positions()) == len(other.positions()) == 1)
        await wait_until(lambda: len(share_of(one).feeds) == len(share_of(other).feeds) == 2)
        for n in range(4):
            fake.queues[RETRIES][n % 2].append(Stored(b"%d" % n, "", 0))
        fake.grew.set()
        halves = sorted([[m.body for m in await take(each, 2)] for each in (one, other)])
        assert halves == [[b"0", b"2"], [b"1", b"3"]]


async def test_without_a_retry_topic_the_topic_is_read(fake: Any, backs: SendBacks, wait_until: Any) -> None:
    del fake.queues[RETRIES]
    fake.fill(TOPIC, 0, bodies(0, 1))
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC) as c:
        assert (await anext(c)).body == b"0"
        fake.create(RETRIES, 1)
        share_of(c).rebalance.set()
        fake.queues[RETRIES][0].append(Stored(b"new", "", 0))
        assert (await anext(c)).body == b"new"


async def test_a_retry_topic_that_is_deleted_ends_nothing(fake: Any, backs: SendBacks, wait_until: Any) -> None:
    async with aconnect(fake.servers, environment=with_times(long_poll_s=0.0)) as mq, mq.consumer(GROUP, TOPIC) as c:
        assert len(share_of(c).feeds) == 3
        del fake.queues[RETRIES]
        await wait_until(lambda: len(share_of(c).feeds) == 2)
        fake.fill(TOPIC, 0, bodies(0, 1))
        assert (await anext(c)).body == b"0"


TROUBLE = [
    Step(False, 14, "no leader"),
    Step(False, 2, "busy"),
    Step(True, 1, "[UNKNOWN]"),
    Step(True, None, None, True),
]


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_a_report_is_repeated_until_it_is_settled(fake: Any, backs: SendBacks, trouble: Step) -> None:
    fake.fill(TOPIC, 0, bodies(0, 1))
    backs.steps.extend([trouble] * 2)
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC) as c:
        await c.retry(await anext(c), level=1)
        assert (await anext(c)).body == b"again"
    assert backs.failed == [(0, 1)] * 3


@pytest.mark.parametrize(
    ("step", "error"), [(Step(False, 1, "trimmed"), Failed), (Step(False, None), Unknown), (Step(False, 14), Refused)]
)
async def test_what_was_not_sent_back_is_told_and_not_committed(
    fake: Any, backs: SendBacks, step: Step, error: type[Exception]
) -> None:
    fake.fill(TOPIC, 0, bodies(0, 2))
    backs.steps.extend([step] * 100)
    async with aconnect(fake.servers, environment=with_times(send_back_s=1.0)) as mq:
        with pytest.raises(error):
            async with mq.consumer(GROUP, TOPIC) as c:
                await c.run(fails)
    assert fake.offsets[GROUP, TOPIC, 0] == 0


async def fails(message: Message) -> None:
    raise LookupError(message.body)


async def test_a_function_that_fails_has_its_message_again_and_the_next_go_on(
    fake: Any, backs: SendBacks, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fill(TOPIC, 0, bodies(0, 5))
    handled = []

    async def handle(message: Message) -> None:
        if message.body == b"2":
            raise LookupError("no such customer")
        handled.append(message.body)

    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC) as c:
        await run_until(c, handle, lambda: len(handled) == 5)
    assert sorted(handled) == [b"0", b"1", b"3", b"4", b"again"]
    assert backs.failed == [(2000, 0)]
    assert "no such customer" in caplog.text
    assert fake.offsets[GROUP, TOPIC, 0] == 5


async def test_it_commits_while_it_runs_and_whether_or_not_messages_come(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 3))
    handled = []

    async def handle(message: Message) -> None:
        handled.append(message.body)

    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC) as c:
        running = asyncio.create_task(c.run(handle, commit_every_s=0.05))
        while (GROUP, TOPIC, 0) not in fake.offsets:
            await asyncio.sleep(0.01)
        while fake.offsets[GROUP, TOPIC, 0] < 3:
            await asyncio.sleep(0.01)
        await c.close(commit=False)
        await running
    assert handled == bodies(0, 3)


async def test_an_interruption_of_the_function_passes_and_the_message_is_not_committed(
    fake: Any, backs: SendBacks
) -> None:
    fake.fill(TOPIC, 0, bodies(0, 3))

    async def handle(message: Message) -> None:
        if message.queue_offset == 1:
            raise KeyboardInterrupt

    async with aconnect(fake.servers) as mq:
        c = mq.consumer(GROUP, TOPIC)
        await c.open()
        with pytest.raises(KeyboardInterrupt):
            await c.run(handle)
        await c.close(current_done=False)
    assert (backs.asked, fake.offsets[GROUP, TOPIC, 0]) == ([], 1)


async def test_an_ordered_queue_waits_for_its_message_and_others_go_on(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 4))
    fake.fill(TOPIC, 1, bodies(10, 3))
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, ordered=True) as c:
        got: list[Message] = []
        while not got or got[-1].body != b"1":
            got.append(await anext(c))
        await c.retry(got[-1], after=3600)
        assert c.positions()[0] == 1
        await c.commit()
        assert fake.offsets[GROUP, TOPIC, 0] == 1, "it is not dealt with"
        while sum(m.queue_id for m in got) < 3:
            got.append(await anext(c))
        assert [m.body for m in got if m.queue_id == 0] == bodies(0, 2), "its queue waits"
        c._resume(share_of(c).feeds[QueueKey(TOPIC, 0)], 0)
        got += await take(c, 1)
        await c.retry(got[-1], after=0)
        got += await take(c, 3)
    rows = [(m.body, m.reconsume_times) for m in got if m.queue_id == 0]
    assert rows == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0), (b"3", 0)]
    assert [m.body for m in got if m.queue_id == 1] == bodies(10, 3)
    assert (backs.asked, fake.offsets[GROUP, TOPIC, 0]) == ([], 4)


async def test_a_rest_from_before_a_reset_ends_no_later_one(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 2))
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, ordered=True) as c:
        feed = share_of(c).feeds[QueueKey(TOPIC, 0)]
        await c.retry(await anext(c), after=3600)
        c.inbox.rewind(feed, 0)
        c.inbox.put(Batch(feed, [message_at(0, 0)], 1))
        await c.retry(await anext(c), after=3600)
        c._resume(feed, 0)
        assert c.inbox.resting
        c._resume(feed, 1)
        assert not c.inbox.resting


async def test_an_ordered_reader_that_ends_at_the_end_waits_for_the_retry(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 2))
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, ordered=True, follow=False) as c:
        got = []
        async for message in c:
            got.append(message.body)
            if len(got) == 2:
                await c.retry(message, after=0.1)
                assert not c.at_end
    assert got == [b"0", b"1", b"1"]


async def test_an_ordered_message_is_a_dead_letter_after_its_last_retry(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 2))
    got = []

    async def handle(message: Message) -> None:
        got.append((message.body, message.reconsume_times))
        if message.body == b"0":
            await c.retry(message, after=0)

    async with (
        aconnect(fake.servers) as mq,
        mq.consumer(GROUP, TOPIC, ordered=True, max_retries=2) as c,
    ):
        await run_until(c, handle, lambda: len(got) == 4)
    assert got == [(b"0", 0), (b"0", 1), (b"0", 2), (b"1", 0)]
    assert backs.failed == [(0, -1)]


async def test_only_the_last_message_of_an_ordered_consumer_is_retried(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 2))
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, ordered=True, max_wait_s=0.1) as c:
        first = await anext(c)
        second = await anext(c)
        with pytest.raises(ValueError, match="handed out last"):
            await c.retry(first)
        assert [m async for m in c] == []
        with pytest.raises(ValueError, match="handed out last"):
            await c.retry(second)


async def test_what_cannot_be_used(fake: Any, backs: SendBacks) -> None:
    fake.fill(TOPIC, 0, bodies(0, 1))
    async with aconnect(fake.servers) as mq:
        with pytest.raises(ValueError, match="max_retries"):
            mq.consumer(GROUP, TOPIC, max_retries=-1)
        async with mq.consumer(GROUP, TOPIC) as c:
            message = await anext(c)
            with pytest.raises(ValueError, match="not both"):
                await c.retry(message, after=1, level=1)
    assert backs.asked == []


def test_threads(fake_in_thread: Any) -> None:
    fake = fake_in_thread
    fake.create(TOPIC, 1)
    fake.create(RETRIES, 1)
    backs = SendBacks(fake)
    fake.loop.call_soon_threadsafe(fake.fill, TOPIC, 0, bodies(0, 4))
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if message.body == b"1":
            raise LookupError
        if message.body == b"2":
            c.retry(message, after=timedelta(minutes=1))
        if message.body == b"3":
            c.dead_letter(message)
        handled.append(message.body)

    with raftmq.connect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, max_wait_s=0.5) as c:
        c.run(handle)
    assert sorted(handled) == [b"0", b"2", b"3", b"again", b"again"]
    assert backs.failed == [(1000, 0), (2000, 5), (3000, -1)]


# --- the inbox --------------------------------------------------------------------------------------------------------


def message_at(offset: int, queue: int) -> Message:
    return Message(TOPIC, queue, offset, offset * 10 + queue, b"x", None, None, {}, "", 0, 0)


def test_a_put_back_after_a_reset_or_a_loss_is_no_put_back() -> None:
    inbox = Inbox(lambda feed: None)
    one, other = QueueFeed(TOPIC, 0, 0), QueueFeed(TOPIC, 1, 0)
    inbox.put(Batch(one, [message_at(0, 0), message_at(1, 0)], 2))
    inbox.put(Batch(other, [message_at(0, 1)], 1))
    reset = inbox.take()
    inbox.rewind(one, 0)
    assert reset is not None
    assert inbox.put_back(reset) is None
    lost = inbox.take()
    inbox.revoke(other)
    assert lost is not None
    assert inbox.put_back(lost) is None
    assert (one.position, other.position, inbox.resting, inbox.empty) == (0, 1, False, True)


@given(st.lists(st.sampled_from(("put 0", "put 1", "take", "put back", "resume 0", "resume 1")), max_size=60))
def test_each_queue_is_handed_out_in_order_whatever_is_put_back(steps: list[str]) -> None:
    inbox = Inbox(lambda feed: None)
    feeds = [QueueFeed(TOPIC, queue, 0) for queue in range(2)]
    last: Message | None = None
    resting: set[int] = set()
    due = [0, 0]
    for step in itertools.chain(steps, ("resume 0", "resume 1"), ["take"] * 200):
        if step == "take":
            last = inbox.take()
            if last is not None:
                assert last.queue_id not in resting
                assert last.queue_offset == due[last.queue_id]
                due[last.queue_id] += 1
        elif step == "put back":
            if last is not None:
                assert inbox.put_back(last) is feeds[last.queue_id]
                due[last.queue_id] -= 1
                resting.add(last.queue_id)
                last = None
        else:
            feed = feeds[int(step[-1])]
            if step.startswith("put"):
                first = feed.next_offset
                inbox.put(Batch(feed, [message_at(n, feed.queue_id) for n in (first, first + 1)], first + 2))
            else:
                inbox.resume(feed)
                resting.discard(feed.queue_id)
        for queue, feed in enumerate(feeds):
            assert feed.position == due[queue]
    for feed in feeds:
        assert (feed.position, feed.buffered_messages, feed.buffered_bytes) == (feed.next_offset, 0, 0)
    assert inbox.empty
    assert not inbox.resting


# -- what cannot be read


UNREADABLE = 0x1 | 5 << 8
"""Compressed, in a way that nobody knows."""


def fill_with_one_unreadable(fake: FakeCluster) -> None:
    fake.fill(TOPIC, 0, [b"before", b"?", b"after"])
    queue = fake.queues[TOPIC][0]
    queue[1] = queue[1]._replace(sys_flag=UNREADABLE)


@pytest.mark.parametrize(("ordered", "level"), [(False, 0), (True, -1)])
async def test_what_cannot_be_read_goes_back_and_the_others_are_read(
    fake: Any, backs: SendBacks, ordered: bool, level: int
) -> None:
    fill_with_one_unreadable(fake)
    async with aconnect(fake.servers) as mq, mq.consumer(GROUP, TOPIC, ordered=ordered) as c:
        read = await asyncio.wait_for(take(c, 2), at_most(20))
    assert [message.body for message in read] == [b"before", b"after"]
    assert backs.failed == [(1000, level)]
    assert fake.offsets[GROUP, TOPIC, 0] == 3


async def test_what_cannot_be_read_nor_given_back_is_not_committed(fake: Any, backs: SendBacks) -> None:
    fill_with_one_unreadable(fake)
    backs.steps.append(Step(store=False, code=ResponseCode.NO_PERMISSION))
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Refused):
            async with mq.consumer(GROUP, TOPIC) as c:
                await asyncio.wait_for(take(c, 1), at_most(20))
    assert fake.offsets.get((GROUP, TOPIC, 0), 0) == 0


async def test_a_pull_inflates_so_many_bytes_and_leaves_the_rest_to_the_next(fake: Any, backs: SendBacks) -> None:
    """A reply of 1 MiB may hold a thousand bodies that inflate to 1 MiB each."""
    of_one = 2 * MAX_INFLATED_BYTES // 5
    fake.fill(TOPIC, 0, [zlib.compress(b"%d" % number * of_one) for number in range(4)])
    queue = fake.queues[TOPIC][0]
    queue[:] = [each._replace(sys_flag=0x1) for each in queue]
    async with aconnect(fake.servers) as mq:
        pulled = await mq.pull(TOPIC, 0, 0)
        assert ([one.body[:1] for one in pulled.messages], pulled.next_offset) == ([b"0", b"1", b"2"], 3)
        assert len((await mq.pull(TOPIC, 0, 0, as_stored=True)).messages) == 4
        async with mq.consumer(GROUP, TOPIC) as c:
            read = await asyncio.wait_for(take(c, 4), at_most(20))
    assert [(one.body[:1], len(one.body)) for one in read] == [(b"%d" % number, of_one) for number in range(4)]


async def test_a_pull_says_which_message_it_cannot_read_and_has_it_as_stored(fake: Any, backs: SendBacks) -> None:
    fill_with_one_unreadable(fake)
    async with aconnect(fake.servers) as mq:
        found = (await mq.pull(TOPIC, 0, 0)).messages
    assert [message.body for message in found] == [b"before", b"?", b"after"]
    assert [bool(message.undecoded) for message in found] == [False, True, False]
    assert found[1].undecoded.startswith("is compressed in a way")
    assert found[1].place == f"{TOPIC} queue 0 offset 1"
