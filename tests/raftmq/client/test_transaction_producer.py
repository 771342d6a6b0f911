"""Transactions of our client against a scripted cluster: what is asked, what an answer means, what a check decides."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raftmq
from raftmq.client import Failed, Message, Refused, Resolution, Unknown, aconnect
from raftmq.client.producing.transaction_check import HOLD_MAX
from raftmq.client.producing.transaction_producer import AsyncTransactionProducer
from raftmq_wire.codes import RequestCode
from tests.raftmq.client.conftest import FakeCluster, FakeConnection, Step, Stored, stored_form
from tests.support.pace import at_most
from tests.support.patience import with_times

GROUP, TOPIC = "payments", "orders"
COMMIT, ROLLBACK = "8", "12"


class Ends:
    """The cluster's side of 37 and 12. `steps` script what becomes of the next requests, as for sends."""

    def __init__(self, fake: FakeCluster) -> None:
        self.fake = fake
        self.steps: deque[Step] = deque()
        self.asked: list[dict[str, str]] = []
        self.ended: dict[str, str] = {}
        """Message id -> how."""
        self.says_how = True
        fake.handlers[RequestCode.END_TRANSACTION] = self.end
        fake.handlers[RequestCode.QUERY_MESSAGE] = self.query

    def end(self, connection: FakeConnection, opaque: int, ext: dict[str, str], body: bytes) -> None:
        self.asked.append(ext)
        step = self.steps.popleft() if self.steps else Step()
        how = "earlier"
        if step.store and ext["msgId"] not in self.ended:
            how = self.ended[ext["msgId"]] = {COMMIT: "committed", ROLLBACK: "rolledBack"}[ext["commitOrRollback"]]
        if step.close:
            connection.transport.abort()
        elif step.code is not None:
            fields = {"raftmqEnd": how} if self.says_how and not step.code else {}
            connection.reply(opaque, step.code, fields, remark=step.remark)

    def query(self, connection: FakeConnection, opaque: int, ext: dict[str, str], body: bytes) -> None:
        assert (ext["topic"], ext["_UNIQUE_KEY_QUERY"]) == (TOPIC, "true")
        if self.ended.get(ext["key"]) == "committed":
            connection.reply(opaque, body=stored_form(TOPIC, 0, 0, Stored(b"x", "", 0)))
        else:
            connection.reply(opaque, 22, remark="none")

    def ask(self, message_id: str, half: Stored, position: int = 0, node: int = 0) -> None:
        """39, on the connection of that node which a heartbeat named last."""
        fields = {"msgId": message_id, "tranStateTableOffset": "7", "commitLogOffset": str(position)}
        connections = self.fake.nodes[node].connections
        known = [c for c in self.fake.producers[GROUP].values() if c in connections]
        for connection in known or self.fake.producers[GROUP].values():
            connection.ask(RequestCode.CHECK_TRANSACTION_STATE, fields, stored_form(TOPIC, 0, 7, half))


@pytest.fixture
def ends(fake: Any) -> Ends:
    fake.create(TOPIC, 1)
    return Ends(fake)


def half_of(message_id: str, group: str = GROUP) -> Stored:
    properties = f"UNIQ_KEY\x01{message_id}\x02PGROUP\x01{group}\x02TRAN_MSG\x01true\x02"
    return Stored(b"paid", properties, 1_700_000_000_000)


wrongly_asked: list[Message] = []
"""Messages that `never` was asked about: a check that raises would only be logged, and count as undecided."""


async def never(message: Message) -> Resolution:
    wrongly_asked.append(message)
    return Resolution.UNDECIDED


def settles_in(producer: AsyncTransactionProducer, timeout_s: float) -> None:
    """Limits the time that it asks for an end; opening and sending have all the time that a busy machine takes."""
    producer._ends._timeout_s = timeout_s


@pytest.fixture(autouse=True)
def nobody_is_asked_wrongly() -> Iterator[None]:
    """Programs that use `never` are not asked."""
    wrongly_asked.clear()
    yield
    assert wrongly_asked == []


async def test_a_block_that_ends_commits_and_one_that_raises_rolls_back(fake: Any, ends: Ends) -> None:
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        async with producer.transaction(TOPIC, b"paid", key="42", tag="t", check_after_s=20.5) as one:
            assert ends.asked == [], "not before the block has ended"
        with pytest.raises(LookupError, match="no such account"):
            async with producer.transaction(TOPIC, b"paid") as two:
                raise LookupError("no such account")
    assert ends.ended == {one.message_id: "committed", two.message_id: "rolledBack"}
    half = fake.queues[TOPIC][0][0].properties
    for pair in ("TRAN_MSG\x01true", f"PGROUP\x01{GROUP}", "KEYS\x0142", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0121"):
        assert f"{pair}\x02" in half
    assert {fake.sends[0].ext["a"], ends.asked[0]["producerGroup"]} == {GROUP}
    where = {name: ends.asked[1][name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "topic")}
    assert where == {
        "tranStateTableOffset": "1",
        "commitLogOffset": "1000",
        "msgId": two.message_id,
        "topic": TOPIC,
    }


@pytest.mark.parametrize("how", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_an_interruption_decides_nothing(fake: Any, ends: Ends, how: type[BaseException]) -> None:
    """It may have come when the local transaction had been committed."""
    asked: list[str] = []

    async def check(message: Message) -> Resolution:
        asked.append(message.message_id)
        return Resolution.COMMIT

    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=check) as producer:
        one = producer.transaction(TOPIC, b"paid")
        await one.begin()
        await one.__aexit__(how, how(), None)
        assert ends.asked == []
        ends.ask(one.message_id, half_of(one.message_id))
        await until(lambda: one.message_id in ends.ended)
    assert (asked, ends.ended[one.message_id]) == ([one.message_id], "committed")


async def until(met: Callable[[], bool]) -> None:
    while not met():
        await asyncio.sleep(0.005)


TROUBLE = {
    "no leader": Step(False, 14, "no leader"),
    "busy": Step(False, 2, "limit"),
    "undecided": Step(False, 1, "[UNKNOWN] undecided"),
    "undecided, carried out": Step(True, 1, "[UNKNOWN] undecided"),
    "closed before": Step(False, None, None, True),
    "closed after": Step(True, None, None, True),
}


@pytest.mark.parametrize("says_how", [True, False])
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("trouble", TROUBLE)
async def test_it_is_asked_until_it_is_settled(
    fake: Any, ends: Ends, trouble: str, commits: bool, says_how: bool
) -> None:
    ends.says_how = says_how
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        one = await producer.transaction(TOPIC, b"paid").begin()
        ends.steps.extend([TROUBLE[trouble]] * 2)
        await (one.commit() if commits else one.rollback())
    assert ends.ended == {one.message_id: "committed" if commits else "rolledBack"}
    assert len(ends.asked) == 3
    assert len({ext["commitOrRollback"] for ext in ends.asked}) == 1


@pytest.mark.parametrize("says_how", [True, False])
@pytest.mark.parametrize(("wish", "ended"), [("commit", "rolledBack"), ("rollback", "committed"), ("commit", "parked")])
async def test_what_ended_otherwise_is_not_as_wished(
    fake: Any, ends: Ends, wish: str, ended: str, says_how: bool
) -> None:
    ends.says_how = says_how
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        one = await producer.transaction(TOPIC, b"paid").begin()
        ends.ended[one.message_id] = ended
        with pytest.raises(Failed, match="ended otherwise") as caught:
            await getattr(one, wish)()
    assert caught.value.message_ids == (one.message_id,)


async def test_a_block_whose_commit_came_too_late_raises(fake: Any, ends: Ends) -> None:
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        with pytest.raises(Failed, match="ended otherwise"):
            async with producer.transaction(TOPIC, b"paid") as one:
                ends.ended[one.message_id] = "rolledBack"
    assert len(ends.asked) == 1, "a commit that failed is not followed by a rollback"


@pytest.mark.parametrize("step", [Step(False, None), Step(False, 14, "no leader"), Step(True, None)])
async def test_what_is_not_settled_in_time_is_unknown_and_a_check_hears_the_decision(
    fake: Any, ends: Ends, step: Step
) -> None:
    ends.steps.extend([step] * 1000)
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        settles_in(producer, 0.3)
        with pytest.raises(Unknown):
            async with producer.transaction(TOPIC, b"paid") as one:
                pass
        ends.steps.clear()
        ends.ask(one.message_id, half_of(one.message_id))
        await until(lambda: ends.asked[-1]["fromTransactionCheck"] == "true" and one.message_id in ends.ended)
    assert {ext["commitOrRollback"] for ext in ends.asked} == {COMMIT}


async def test_a_rollback_that_is_not_confirmed_is_told_with_the_error(fake: Any, ends: Ends) -> None:
    ends.steps.extend([Step(False, 14, "no leader")] * 1000)
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        settles_in(producer, 0.3)
        with pytest.raises(LookupError, match="no such account") as caught:
            async with producer.transaction(TOPIC, b"paid"):
                raise LookupError("no such account")
    assert "not rolled back" in caught.value.__notes__[0]


async def test_a_half_message_that_is_refused_or_unknown_runs_no_block(fake: Any, ends: Ends) -> None:
    ran = []
    fake.nodes[0].steps.append(Step(False, 13, "too long"))
    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=never) as producer:
        with pytest.raises(Refused, match="too long"):
            async with producer.transaction(TOPIC, b"paid"):
                ran.append(1)
        producer._producer.pipeline.timeout_s = 0.3
        fake.nodes[0].on_send = lambda _: Step(True, 1, "[UNKNOWN] undecided")
        with pytest.raises(Unknown) as caught:
            async with producer.transaction(TOPIC, b"paid"):
                ran.append(2)
        (message_id,) = caught.value.message_ids
        ends.ask(message_id, half_of(message_id))
        await until(lambda: message_id in ends.ended)
    assert (ran, ends.ended) == ([], {message_id: "rolledBack"}), "nothing was done that it could tell of"


async def test_a_check_answers_for_others_of_the_group(fake: Any, ends: Ends) -> None:
    seen: list[Message] = []

    async def check(message: Message) -> Resolution:
        seen.append(message)
        return Resolution.COMMIT if message.message_id == "A1" else Resolution.ROLLBACK

    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=check):
        ends.ask("A1", half_of("A1"), 700)
        ends.ask("A2", half_of("A2"), 800)
        ends.ask("A3", half_of("A3", "another group"), 900)
        await until(lambda: len(ends.ended) == 2)
    assert ends.ended == {"A1": "committed", "A2": "rolledBack"}
    assert [(m.body, m.topic) for m in seen] == [(b"paid", TOPIC)] * 2
    asked = {ext["msgId"]: (ext["tranStateTableOffset"], ext["commitLogOffset"], ext["topic"]) for ext in ends.asked}
    assert asked == {"A1": ("7", "700", TOPIC), "A2": ("7", "800", TOPIC)}
    assert fake.producers[GROUP] == {}, "it has said goodbye"


@pytest.mark.parametrize("answer", [None, True, "COMMIT", Resolution.UNDECIDED, RuntimeError("database gone")])
async def test_a_check_that_does_not_decide_leaves_it_open(fake: Any, ends: Ends, answer: Any) -> None:
    answers = [answer, Resolution.COMMIT]

    async def check(message: Message) -> Resolution:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async with aconnect(fake.servers) as mq, mq.transaction_producer(GROUP, check=check):
        ends.ask("A1", half_of("A1"))
        await until(lambda: len(answers) == 1)
        assert ends.asked == []
        ends.ask("A1", half_of("A1"))
        await until(lambda: "A1" in ends.ended)
    assert ends.ended == {"A1": "committed"}


async def test_the_check_is_not_asked_while_the_block_runs(fake: Any, ends: Ends) -> None:
    asked: list[str] = []

    async def check(message: Message) -> Resolution:
        asked.append(message.message_id)
        return Resolution.UNDECIDED

    async with (
        aconnect(fake.servers) as mq,
        mq.transaction_producer(GROUP, check=check) as producer,
        producer.transaction(TOPIC, b"paid") as one,
    ):
        ends.ask(one.message_id, half_of(one.message_id))
        ends.ask("last", half_of("last"))
        await until(lambda: "last" in asked)
    assert asked == ["last"]
    assert {ext["fromTransactionCheck"] for ext in ends.asked} == {"false"}
    assert ends.ended == {one.message_id: "committed"}


async def test_one_check_of_a_message_at_a_time_and_not_too_many(fake: Any, ends: Ends) -> None:
    goes_on = asyncio.Event()
    checked: list[str] = []

    async def check(message: Message) -> Resolution:
        checked.append(message.message_id)
        await goes_on.wait()
        return Resolution.COMMIT

    held = [f"A{number}" for number in range(HOLD_MAX)]
    times, beats = with_times(heartbeat_every_s=0.05), fake.nodes[0].calls
    async with aconnect(fake.servers, environment=times) as mq, mq.transaction_producer(GROUP, check=check):
        for message_id in ("A0", *held, "too many", "A0"):
            ends.ask(message_id, half_of(message_id))
        seen = beats.count(RequestCode.HEART_BEAT)
        # Whoever has the answer to a heartbeat has seen what came before it.
        await until(lambda: beats.count(RequestCode.HEART_BEAT) >= seen + 2)
        goes_on.set()
        await until(lambda: len(ends.ended) == HOLD_MAX)
    assert checked == held


async def test_it_is_known_to_every_node_and_to_one_that_comes_back(fake: Any, ends: Ends) -> None:
    times = with_times(heartbeat_every_s=0.05)
    async with aconnect(fake.servers, environment=times) as mq, mq.transaction_producer(GROUP, check=never):
        assert [node.calls.count(RequestCode.HEART_BEAT) for node in fake.nodes] == [1, 1, 1]
        fake.nodes[2].kill()
        await fake.nodes[2].start()
        seen = fake.nodes[2].calls.count(RequestCode.HEART_BEAT)
        await until(lambda: fake.nodes[2].calls.count(RequestCode.HEART_BEAT) > seen)


async def test_what_cannot_be_used(fake: Any, ends: Ends) -> None:
    async with aconnect(fake.servers) as mq:
        with pytest.raises(ValueError, match="group"):
            mq.transaction_producer("", check=never)
        with pytest.raises(TypeError, match="function"):
            mq.transaction_producer(GROUP, check=None)  # type: ignore[arg-type]
        producer = mq.transaction_producer(GROUP, check=never)
        with pytest.raises(ValueError, match="check_after_s"):
            producer.transaction(TOPIC, b"x", check_after_s=90_000)
        with pytest.raises(RuntimeError, match="not open"):
            await producer.transaction(TOPIC, b"x").begin()
        async with producer:
            one = producer.transaction(TOPIC, b"x")
            with pytest.raises(RuntimeError, match="has not begun"):
                await one.commit()
            await one.begin()
            await one.commit()
            with pytest.raises(RuntimeError, match="decided before: commit"):
                await one.rollback()


async def test_a_group_name_that_is_refused_is_told(fake: Any, ends: Ends) -> None:
    for node in fake.nodes:
        node.overrides[RequestCode.HEART_BEAT] = deque([(29, "not a name", {}, b"")])
    async with aconnect(fake.servers) as mq:
        with pytest.raises(Refused, match="not a name"):
            await mq.transaction_producer("ab", check=never).open()
        with pytest.raises(ValueError, match="'a b' is no name of a group"):
            mq.transaction_producer("a b", check=never)


def test_threads(fake_in_thread: Any) -> None:
    """The check may use the client: it runs in a thread of its own."""
    fake = fake_in_thread
    ends = Ends(fake)
    fake.create(TOPIC, 1)
    done = threading.Event()
    with raftmq.connect(fake.servers) as mq:

        def check(message: Message) -> Resolution:
            mq.send(TOPIC, b"from the check")
            done.set()
            return Resolution.COMMIT

        with mq.transaction_producer(GROUP, check=check) as producer:
            with producer.transaction(TOPIC, b"paid", ordering_key="7") as one:
                pass
            with pytest.raises(LookupError), producer.transaction(TOPIC, b"paid") as two:
                raise LookupError
            with producer.transaction(TOPIC, b"paid") as three:
                three.leave_to_check()
            fake.loop.call_soon_threadsafe(ends.ask, three.message_id, half_of(three.message_id))
            assert done.wait(at_most(30))
            while three.message_id not in ends.ended:
                done.wait(0.005)
    assert ends.ended == {
        one.message_id: "committed",
        two.message_id: "rolledBack",
        three.message_id: "committed",
    }
    assert b"from the check" in fake.bodies(TOPIC)
