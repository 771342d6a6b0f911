"""A producer against a scripted cluster: identity, order, outcomes."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from raftmq.client import Failed, NotFound, Refused, Unknown, Unreachable, aconnect
from raftmq.client.errors import RaftMQError
from raftmq_wire.codes import RequestCode
from tests.support.pace import at_most
from tests.support.patience import with_times
from tests.support.rows import each_row


def sequences(fake: Any) -> list[int]:
    return [arrived.sequence for arrived in fake.sends]


async def test_send_says_where_the_message_is(fake: Any) -> None:
    fake.create("orders")
    async with aconnect(fake.servers) as mq:
        result = await mq.send("orders", b"hi", key="42", tag="new", queue_id=3, properties={"colour": "blue"})
    assert (result.queue_id, result.queue_offset, result.position) == (3, 0, 3)
    message = fake.queues["orders"][3][0]
    assert message.body == b"hi"
    for pair in ("KEYS\x0142", "TAGS\x01new", "colour\x01blue", f"UNIQ_KEY\x01{result.message_id}"):
        assert pair + "\x02" in message.properties
    assert len(result.message_id) == 32
    assert int(result.message_id, 16) >= 0


async def test_each_request_carries_the_session_identity(fake: Any) -> None:
    fake.create("orders")
    async with aconnect(fake.servers) as mq, mq.producer() as p:
        for _ in range(3):
            await p.send("orders", b"x")
        await p.send_batch("orders", [b"a", b"b"])
        assert {a.ext["raftmqPid"] for a in fake.sends} == {p.producer_id}
    assert sequences(fake) == [1, 2, 3, 4]
    assert [a.ext["raftmqLow"] for a in fake.sends] == ["1", "2", "3", "4"]
    assert [a.code for a in fake.sends] == [310, 310, 310, 320]


async def test_round_robin_covers_all_queues_and_ordering_key_stays(fake: Any) -> None:
    fake.create("orders", 4)
    async with aconnect(fake.servers) as mq:
        spread = [(await mq.send("orders", b"x")).queue_id for _ in range(8)]
        same = {(await mq.send("orders", b"x", ordering_key="customer-7")).queue_id for _ in range(5)}
    assert sorted(spread) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(same) == 1


async def test_missing_topic_is_made_by_the_first_send(fake: Any) -> None:
    async with aconnect(fake.servers) as mq:
        await mq.send("brand-new", b"x")
    assert fake.bodies("brand-new") == [b"x"]
    assert (fake.sends[0].ext["c"], fake.sends[0].ext["d"]) == ("TBW102", "8")


async def test_missing_topic_without_auto_create_is_not_found(fake: Any) -> None:
    fake.auto_create = False
    async with aconnect(fake.servers) as mq:
        with pytest.raises(NotFound) as caught:
            await mq.send("nowhere", b"x")
    assert caught.value.code == 17
    assert "raftmq topic create" in caught.value.hint
    assert fake.sends == []


@pytest.mark.parametrize(
    ("code", "remark", "error"),
    [
        (13, "too long", Refused),
        (16, "perm 4", Refused),
        (17, "gone", NotFound),
        (29, "queue 9", Refused),
        (3, "what", Refused),
        (1, "exception", Failed),
        (777, "new code", Unknown),
    ],
)
async def test_a_no_at_once_is_final_and_not_repeated(
    fake: Any, step: Any, code: int, remark: str, error: type[RaftMQError]
) -> None:
    fake.create("orders")
    fake.nodes[0].steps.append(step(store=False, code=code, remark=remark))
    async with aconnect(fake.servers) as mq:
        with pytest.raises(error, match=remark) as caught:
            await mq.send("orders", b"x")
        assert caught.value.code == code
        assert len(caught.value.message_ids) == 1
        assert len(fake.sends) == 1
        await mq.send("orders", b"next")
    assert [a.ext["raftmqLow"] for a in fake.sends] == ["1", "2"]


TROUBLE = {
    "no leader": (False, 14, "no leader", False),
    "busy": (False, 2, "limit", False),
    "unknown, not stored": (False, 1, "[UNKNOWN] timeout", False),
    "unknown, stored": (True, 1, "[UNKNOWN] timeout", False),
    "closed before storing": (False, None, None, True),
    "closed after storing": (True, None, None, True),
    "never answered, not stored": (False, None, None, False),
    "never answered, stored": (True, None, None, False),
}


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_trouble_is_survived_with_the_same_identity_and_stored_once(fake: Any, step: Any, trouble: str) -> None:
    fake.create("orders", 1)
    fake.nodes[0].steps.extend([step(*TROUBLE[trouble])] * 2)
    async with aconnect(fake.servers) as mq, mq.producer(attempt_timeout_s=0.05) as p:
        result = await p.send("orders", b"x")
    assert fake.bodies("orders") == [b"x"]
    assert result.queue_offset == 0
    assert len(fake.sends) >= 3
    assert len({(a.identity, a.body, a.ext["i"], a.ext["g"]) for a in fake.sends}) == 1


@pytest.mark.parametrize("code", [13, 16, 17, 29, 1])
async def test_a_no_after_a_lost_answer_is_unknown(fake: Any, step: Any, code: int) -> None:
    fake.create("orders", 1)
    fake.nodes[0].steps.extend([step(True, None, None, True), step(False, code, "no")])
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Unknown) as caught:
            await mq.send("orders", b"x")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((False, 14, "no leader", False), Refused),
        ((False, 2, "busy", False), Refused),
        ((False, 1, "[UNKNOWN]", False), Unknown),
        ((False, None, None, False), Unknown),
    ],
)
async def test_the_deadline_gives_what_is_known(fake: Any, step: Any, answer: Any, error: type[RaftMQError]) -> None:
    fake.create("orders", 1)
    fake.nodes[0].on_send = lambda _: step(*answer)
    async with aconnect(fake.servers) as mq, mq.producer(timeout_s=0.4, attempt_timeout_s=0.1) as p:
        with pytest.raises(error) as caught:
            await p.send("orders", b"x")
        assert caught.value.retryable == (error is Refused)
        fake.nodes[0].on_send = lambda _: None
        p.pipeline.timeout_s = 30.0
        await p.send("orders", b"next")
    assert fake.sends[-1].ext["raftmqLow"] == "2"


async def test_nobody_listening_is_unreachable_and_did_not_happen(fake: Any) -> None:
    fake.stop()
    async with aconnect(fake.servers, timeout_s=0.3) as mq:
        with pytest.raises(Unreachable) as caught:
            await mq.send("orders", b"x")
    assert caught.value.retryable
    assert "raftmq status" in caught.value.hint


async def test_a_killed_leader_loses_nothing_and_keeps_the_order(fake: Any, step: Any, wait_until: Any) -> None:
    fake.create("orders", 1)
    second_half = asyncio.Event()

    def on_send(arrived: Any) -> Any:
        if arrived.sequence < 40:
            return None
        second_half.set()
        return step(store=arrived.sequence % 2 == 0 and arrived.sequence < 50, code=None)

    fake.nodes[0].on_send = on_send
    async with aconnect(fake.servers) as mq, mq.producer() as p:
        futures = [await p.send_soon("orders", b"%d" % n) for n in range(1, 101)]
        await second_half.wait()
        fake.leader = None
        fake.nodes[0].kill()
        await wait_until(lambda: mq.view.leader is None)
        futures += [await p.send_soon("orders", b"%d" % n) for n in range(101, 121)]
        await asyncio.sleep(0)
        fake.leader = 2
        results = await asyncio.gather(*futures)
    assert sorted(int(b) for b in fake.bodies("orders")) == list(range(1, 121))
    resent = [a.sequence for a in fake.sends if a.node == 2]
    assert resent == sorted(resent)
    assert resent[0] == min(a.sequence for a in fake.sends if a.node == 0 and a.sequence >= 40)
    stored = fake.bodies("orders")
    assert [stored[r.queue_offset] for r in results] == [b"%d" % n for n in range(1, 121)]


async def test_a_mute_leader_is_left_when_another_one_leads(fake: Any) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq, mq.producer(attempt_timeout_s=0.1) as p:
        await p.send("orders", b"first")
        fake.nodes[0].mute = True
        future = await p.send_soon("orders", b"second")
        fake.leader = 1
        await future
    assert fake.bodies("orders") == [b"first", b"second"]
    assert fake.sends[-1].node == 1


async def test_a_leader_named_by_others_must_answer_itself(fake: Any, wait_until: Any) -> None:
    fake.create("orders", 1)
    fake.nodes[0].mute = True
    async with aconnect(fake.servers) as mq:
        waiting = asyncio.create_task(mq.send("orders", b"x"))
        await wait_until(lambda: fake.nodes[0].calls.count(106) >= 1 and fake.nodes[1].calls.count(106) >= 2)
        fake.leader = 2
        await waiting
    assert [a.node for a in fake.sends] == [2]


async def test_without_a_leader_for_long_any_node_that_answers_is_used(fake: Any) -> None:
    fake.create("orders", 1)
    fake.leader = None
    async with aconnect(fake.servers, environment=with_times(accept_any_after_s=0.0)) as mq:
        await mq.send("orders", b"x")
    assert fake.bodies("orders") == [b"x"]


async def test_fourteen_from_a_deposed_leader_moves_to_the_new_one(fake: Any, step: Any) -> None:
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq, mq.producer() as p:
        await p.send("orders", b"first")
        fake.nodes[0].on_send = lambda _: step(store=False, code=14)
        fake.leader = 1
        await asyncio.gather(*[await p.send_soon("orders", b"%d" % n) for n in range(10)])
    assert fake.bodies("orders") == [b"first", *(b"%d" % n for n in range(10))]


async def test_batch_results_are_consecutive(fake: Any) -> None:
    fake.create("orders", 4)
    async with aconnect(fake.servers) as mq:
        await mq.send("orders", b"before", queue_id=2)
        results = await mq.send_batch("orders", [b"a", b"b", b"c"], queue_id=2, tag="t")
    assert [(r.queue_id, r.queue_offset, r.position) for r in results] == [(2, 1, 1002), (2, 2, 2002), (2, 3, 3002)]
    assert [m.body for m in fake.queues["orders"][2]] == [b"before", b"a", b"b", b"c"]
    assert all(r.message_id in m.properties for r, m in zip(results, fake.queues["orders"][2][1:], strict=True))


async def test_room_bounds_what_is_unsettled(fake: Any, step: Any, wait_until: Any) -> None:
    fake.create("orders", 1)
    fake.nodes[0].on_send = lambda _: step(store=True, code=None)
    async with aconnect(fake.servers) as mq, mq.producer(max_messages=8, timeout_s=0.5, attempt_timeout_s=5) as p:
        futures = [await p.send_soon("orders", b"x") for _ in range(8)]
        p.pipeline.timeout_s = 30.0
        ninth = asyncio.create_task(p.send_soon("orders", b"x"))
        await wait_until(lambda: len(fake.sends) == 8)
        assert not ninth.done()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(o, Unknown) for o in outcomes)
        fake.nodes[0].on_send = lambda _: None
        await (await ninth)


@each_row(
    ("arguments", "error"),
    [
        ({"topic": "", "body": b"x"}, ValueError),
        ({"topic": "t", "body": "text"}, TypeError),
        ({"topic": "t", "body": b"x", "queue_id": -1}, ValueError),
        ({"topic": "t", "body": b"x", "properties": {"UNIQ_KEY": "mine"}}, Refused),
        ({"topic": "t", "body": b"x", "properties": {"a": "b\x01c"}}, Refused),
        ({"topic": "t", "body": b"x", "properties": {"a": "b" * 40000}}, Refused),
        ({"topic": "t", "body": bytes(16 << 20)}, Refused),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_anything_leaves(fake: Any, arguments: Any, error: type) -> None:
    async with aconnect(fake.servers) as mq:
        with pytest.raises(error):
            await mq.send(**arguments)
    assert fake.sends == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": 42}, "key= is a str or a list of str, not int: write key='42'"),
        ({"key": ["a", 42]}, "key= is a str or a list of str, and ['a', 42] holds something else"),
        ({"tag": 7}, "property TAGS must be a str, not int"),
    ],
)
async def test_a_key_that_is_no_text_is_refused_with_what_to_write(fake: Any, arguments: Any, said: str) -> None:
    async with aconnect(fake.servers) as mq:
        with pytest.raises(TypeError, match=re.escape(said)):
            await mq.send("t", b"x", **arguments)


async def test_a_closed_producer_says_so(fake: Any) -> None:
    fake.create("orders")
    async with aconnect(fake.servers) as mq:
        producer = mq.producer()
        await producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send("orders", b"x")


async def test_leaving_the_block_flushes(fake: Any) -> None:
    fake.create("orders")
    async with aconnect(fake.servers) as mq:
        async with mq.producer() as p:
            futures = [await p.send_soon("orders", b"x") for _ in range(50)]
        assert all(f.done() for f in futures)
    assert len(fake.bodies("orders")) == 50


async def test_a_full_disk_is_told_at_once_and_not_only_at_the_deadline(
    fake: Any, step: Any, caplog: pytest.LogCaptureFixture
) -> None:
    full = "the disk is full: 91.2 per cent of 100 bytes used; nothing was stored"
    fake.create("orders", 1)
    fake.nodes[0].steps.extend([step(store=False, code=14, remark=full)] * 1000)
    with caplog.at_level(logging.WARNING, "raftmq"):
        async with aconnect(fake.servers) as mq, mq.producer(timeout_s=0.5) as p:
            sending = asyncio.ensure_future(p.send("orders", b"x"))
            while not caplog.messages:
                assert not sending.done()
                await asyncio.sleep(0.01)
            with pytest.raises(Refused) as caught:
                await sending
    assert caplog.messages == [f"sends to orders are refused and tried again until their deadline: {full}"]
    assert "Free space" in caught.value.hint


@pytest.mark.parametrize("fault", ["hangs", "is cut off from the others"])
async def test_sends_move_from_a_leader_that_answers_nothing_long_before_they_give_it_up(
    fake: Any, step: Any, fault: str
) -> None:
    """A full run of `isolated-leader`: clients waited until the old leader was back, or for an attempt's 3 s."""
    fake.create("orders", 1)
    async with aconnect(fake.servers) as mq, mq.producer(attempt_timeout_s=60) as p:
        await p.send("orders", b"first")
        old = fake.nodes[0]
        if fault == "hangs":
            old.mute = True
        else:
            old.names_leader = 0  # it has not noticed yet
            old.on_send = lambda _: step(store=False, code=None)
        fake.leader = 1
        async with asyncio.timeout(at_most(30)):
            await asyncio.gather(*[await p.send_soon("orders", b"%d" % n) for n in range(10)])
    assert fake.bodies("orders") == [b"first", *(b"%d" % n for n in range(10))]
    assert {arrived.node for arrived in fake.sends[-10:]} == {1}


async def test_a_leader_that_is_only_slow_keeps_its_sends(fake: Any, wait_until: Any) -> None:
    """The others are asked who leads, and name the same node: nothing is sent twice."""
    fake.create("orders", 1)
    kept: list[Any] = []
    async with aconnect(fake.servers) as mq, mq.producer(attempt_timeout_s=60) as p:
        await p.send("orders", b"first")
        fake.handlers[RequestCode.SEND_MESSAGE_V2] = lambda *arrived: kept.append(arrived)
        slow = await p.send_soon("orders", b"slow")
        asked = fake.nodes[1].calls.count(RequestCode.GET_BROKER_CLUSTER_INFO)
        await wait_until(lambda: fake.nodes[1].calls.count(RequestCode.GET_BROKER_CLUSTER_INFO) > asked)
        await wait_until(lambda: p.pipeline._linking is None)
        del fake.handlers[RequestCode.SEND_MESSAGE_V2]
        (connection, opaque, ext, body) = kept.pop()
        connection.on_send(fake.sends[0]._replace(opaque=opaque, ext=ext, body=body))
        await slow
        await p.send("orders", b"next")
    assert not kept
    assert sequences(fake) == [1, 2, 3]
