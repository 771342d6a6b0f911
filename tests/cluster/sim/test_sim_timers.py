"""Messages that are delivered later: once, not before their time, under any leader; and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.delivery_time import TIMER_TOPIC, Delayed, Delays
from cluster.broker.reads.message_lookup import message_at
from cluster.broker.timers.due_reads import DueAsk, DueReads
from cluster.broker.timers.row_delivery import ROWS_MAX
from cluster.replication.message_head import DeliverySchedule, property_of, topic_field
from raftlog.errors import OutOfRangeError, StorageError
from raftmq_wire.message_format import BatchItem, Message, build_batch, decode_message, decode_message_id
from statemachine.delivery.timers import TimerCounts
from statemachine.removal_slices import DeleteTopic
from tests.support.sim_cluster import SELDOM_S, SimCluster, SimNode, codes, send_frame

SMALL = {"limits.message_bytes_max": 4096, "limits.batch_bytes_max": 8192, "limits.frame_bytes_max": 1 << 17}


@pytest.fixture
def sim() -> Any:
    with SimCluster(11, **SMALL) as cluster:
        cluster.create_topic("T")
        yield cluster


def send(
    sim: SimCluster, properties: str, body: bytes = b"m", node: SimNode | None = None, **more: Any
) -> tuple[int, str, dict[str, Any]]:
    """Code, remark and fields of the answer."""
    path = (node or sim.leader()).connect()
    path.ask(send_frame(1, more.pop("topic", "T"), body, properties=properties, **more))
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    assert len(codes(path, 1)) == 1
    code, remark, fields = path.replies[1][0]
    return code, remark, json.loads(fields) if fields else {}


def delivered(sim: SimCluster, topic: str = "T") -> list[Message]:
    """Returns the messages in the queues of the leader's topic."""
    node, found = sim.leader(), []
    config = node.state.topics[topic]
    for queue_id in range(config.queues):
        items = node.state.fetch(config.id, queue_id, 0, 1000)
        found += [decode_message(node.log.read_at(item.position, item.size))[0] for item in items]
    return found


def log_time(sim: SimCluster) -> int:
    return sim.leader().raw.log_time_ms()


def wait_for(sim: SimCluster, count: int, limit_s: float = 30, topic: str = "T") -> None:
    sim.loop.run_until(lambda: len(delivered(sim, topic)) >= count, limit_s, f"{count} messages", every_s=SELDOM_S)


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ("DELAY\x012\x02", 5000),
        ("TIMER_DELAY_SEC\x013\x02", 3000),
        ("TIMER_DELAY_MS\x012500\x02", 2500),
        ("DELAY\x011\x02TIMER_DELAY_SEC\x0160\x02", 1000),
    ],
)
@pytest.mark.parametrize("leads", [True, False])
def test_a_message_is_delivered_when_it_is_due(sim: SimCluster, leads: bool, properties: str, delay_ms: int) -> None:
    node = sim.leader() if leads else sim.followers()[0]
    assert send(sim, properties, b"body", node, key="K", queue_id=1)[0] == 0
    due_ms = sim.leader().state.timers.earliest
    assert 0 <= log_time(sim) + delay_ms - due_ms < 1000, "counted from the moment it was stored"
    assert delivered(sim) == []
    wait_for(sim, 1)
    (message,) = delivered(sim)
    assert (message.body, message.queue_id, message.topic) == (b"body", 1, "T")
    assert due_ms <= message.store_ms <= due_ms + 1000
    assert not property_of(message.properties, b"DELAY\x01")
    assert property_of(message.properties, b"REAL_TOPIC\x01") == b"T"
    assert property_of(message.properties, b"UNIQ_KEY\x01") == b"K"
    sim.loop.run_for(10)
    assert len(delivered(sim)) == 1
    sim.settle()
    sim.check_equal()


def test_a_time_of_its_own(sim: SimCluster) -> None:
    due = log_time(sim) + 4000
    assert send(sim, f"TIMER_DELIVER_MS\x01{due}\x02")[0] == 0
    (row,) = sim.leader().state.timers.due(due)
    assert row.due_ms == due
    wait_for(sim, 1)
    (message,) = delivered(sim)
    assert message.store_ms >= due
    assert property_of(message.properties, b"TIMER_OUT_MS\x01") == str(due).encode()
    assert property_of(message.properties, b"TIMER_DELIVER_MS\x01") == str(due).encode(), "and it is not timed again"


@pytest.mark.parametrize(
    "properties",
    [
        "DELAY\x010\x02",
        "DELAY\x01-3\x02",
        "TIMER_DELIVER_MS\x011000\x02",
        "TIMER_DELAY_MS\x010\x02",
        "NODELAY\x019\x02",
    ],
)
def test_what_is_due_at_once_is_a_plain_message(sim: SimCluster, properties: str) -> None:
    assert send(sim, properties)[0] == 0
    assert len(delivered(sim)) == 1
    assert sim.leader().state.timers.counts == TimerCounts()


def test_a_level_beyond_the_last_is_the_last(sim: SimCluster) -> None:
    assert send(sim, "DELAY\x0199\x02")[0] == 0
    due = sim.leader().state.timers.earliest
    assert abs(due - log_time(sim) - 7_200_000) < 1000


@pytest.mark.parametrize(
    "properties",
    [
        "DELAY\x01abc\x02",
        "DELAY\x0199999999999999999999\x02",
        "DELAY\x01\u0662\x02",
        "TIMER_DELAY_SEC\x01259201\x02",
        "TIMER_DELAY_SEC\x019223372036854775807\x02",
        "TIMER_DELAY_MS\x01259200001\x02",
        "TIMER_DELIVER_MS\x019223372036854775807\x02",
        "TIMER_DELIVER_MS\x019223372036854775808\x02",
        "TIMER_DELAY_MS\x011.5\x02",
        "TIMER_DELAY_SEC\x011\x02TIMER_DELAY_MS\x011000\x02",
        "DELAY\x012\x02filler\x01" + "x" * 32_700 + "\x02",
    ],
)
def test_what_makes_no_sense_is_refused(sim: SimCluster, properties: str) -> None:
    code, remark, _ = send(sim, properties)
    assert code == 13, remark
    assert sim.leader().state.timers.counts == TimerCounts()


def test_a_batch_cannot_wait(sim: SimCluster) -> None:
    body = build_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"DELAY\x013\x02")])
    path = sim.leader().connect()
    frame = send_frame(1, "T", body).replace(b'"m":"false"', b'"m": "true"')
    path.ask(frame)
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    assert codes(path, 1) == [13]
    assert delivered(sim) == []


def test_many_of_one_moment_are_few_rows(sim: SimCluster) -> None:
    path = sim.leader().connect()
    for number in range(1, 301):
        path.ask(send_frame(number, "T", b"m%d" % number, properties="DELAY\x011\x02"))
    sim.loop.run_until(lambda: len(path.replies) == 300, 20, "300 answers")
    assert sim.leader().state.timers.counts.pending == 300
    rows = list(sim.leader().state.timers.due(1 << 62))
    assert len(rows) < 100
    wait_for(sim, 300)
    assert sorted(message.body for message in delivered(sim)) == sorted(b"m%d" % number for number in range(1, 301))
    assert sim.leader().state.timers.counts == TimerCounts(delivered=300)


def test_more_rows_than_may_be_in_flight(sim: SimCluster) -> None:
    path, count = sim.leader().connect(), ROWS_MAX + 40
    for number in range(1, count + 1):
        path.ask(send_frame(number, "T", b"m", properties=f"TIMER_DELAY_MS\x01{1000 + number}\x02"))
    sim.loop.run_until(lambda: len(path.replies) == count, 20, "answers")
    wait_for(sim, count)
    sim.loop.run_for(5)
    assert len(delivered(sim)) == count


@pytest.mark.parametrize("seed", range(4))
def test_each_is_delivered_once_across_leaders(seed: int) -> None:
    with SimCluster(seed, **SMALL) as sim:
        sim.create_topic("T")
        path = sim.leader().connect()
        for number in range(1, 101):
            path.ask(send_frame(number, "T", b"m%d" % number, properties=f"TIMER_DELAY_MS\x01{1000 + 40 * number}\x02"))
        sim.loop.run_until(lambda: len(path.replies) == 100, 20, "100 answers")
        for _ in range(3):
            sim.loop.run_for(1.0 + sim.rng.random())
            old = sim.leader()
            sim.isolate(old)
            sim.leader(besides=old)
            sim.loop.run_for(1.0)
            sim.mend()
        sim.settle()
        wait_for(sim, 100)
        sim.loop.run_for(10)
        assert sorted(message.body for message in delivered(sim)) == sorted(b"m%d" % n for n in range(1, 101))
        sim.settle()
        sim.check_equal()


def test_what_cannot_be_read_holds_nothing_up(sim: SimCluster, caplog: pytest.LogCaptureFixture) -> None:
    """More such rows than fit into a look stand before the others; they come when they can be read again."""
    bad, good = ROWS_MAX + 50, 20
    path = sim.leader().connect()
    for number in range(1, bad + good + 1):
        path.ask(send_frame(number, "T", b"m%d" % number, properties=f"TIMER_DELAY_MS\x01{1000 + number}\x02"))
    sim.loop.run_until(lambda: len(path.replies) == bad + good, 20, "answers")
    services = sim.leader().running.serving.services
    rows = list(services.state.timers.due(1 << 62))
    sound_from = rows[-good].position
    read_log = services.read_log
    reported: list[int] = []

    def damaged(position: int, size: int) -> bytes:
        if position < sound_from:
            raise StorageError("a sector is gone")
        return read_log(position, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "report_damage", lambda position, size: reported.append(position))
        patch.setattr(services, "read_log", damaged)
        sound = sum(len(row.messages()) for row in rows if row.position >= sound_from)
        assert good <= sound < bad
        wait_for(sim, sound)
        sim.loop.run_for(5)
        assert len(delivered(sim)) == sound
    assert services.state.timers.counts.pending == bad + good - sound
    assert reported
    told = [record.args[0] for record in caplog.records if "set aside" in record.message and type(record.args) is tuple]
    assert sum(told) == sum(1 for row in rows if row.position < sound_from), "each row once"  # type: ignore[arg-type] # numbers
    patch_lane(sim, read_log)
    wait_for(sim, bad + good, 60)
    sim.loop.run_for(5)
    expected = sorted(b"m%d" % number for number in range(1, bad + good + 1))
    assert sorted(message.body for message in delivered(sim)) == expected


def test_a_row_that_ends_while_it_is_read_is_not_damage(sim: SimCluster) -> None:
    """Another leader delivers it, and the log is trimmed past it, before this lane reads its message."""
    send(sim, "TIMER_DELAY_MS\x011000\x02")
    send(sim, "TIMER_DELAY_MS\x01600000\x02")
    first, second = sim.leader().state.timers.due(1 << 62)

    def trimmed(position: int, size: int) -> bytes:
        wait_for(sim, 1)
        raise OutOfRangeError("the log begins above this position")

    reads = DueReads(sim.leader().state, trimmed)
    (found,) = reads.drain([DueAsk(None, 1 << 62, None, None, frozenset(), 10, 1 << 20)])
    assert [due.row for due in found.rows] == [second], "only what still exists cannot be read"
    assert found.last == second.name > first.name


def patch_lane(sim: SimCluster, read_log: Callable[[int, int], bytes]) -> None:
    """The bytes can be read again."""
    lane: Any = sim.leader().running.serving.broker.timers._lane
    lane._lane.read_log = read_log


def test_what_is_due_before_what_was_delivered_already_comes_at_once(sim: SimCluster) -> None:
    """The leader has looked beyond that time; the message does not wait for a sweep of what was left."""
    assert send(sim, "TIMER_DELAY_MS\x01500\x02")[0] == 0
    wait_for(sim, 1)
    term = sim.leader().running.serving.broker.timers._term
    assert term.after is not None
    term.sweep_ms = 1 << 62
    late = Delayed(DeliverySchedule(topic_field(TIMER_TOPIC), 0, due_ms=term.after[0] - 300), b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delays, "of", lambda *_: late)
        assert send(sim, "TIMER_DELAY_MS\x0150\x02", b"late")[0] == 0
    wait_for(sim, 2)
    assert b"late" in [message.body for message in delivered(sim)]


def test_a_repeated_request_waits_once_and_is_answered_alike(sim: SimCluster) -> None:
    path = sim.leader().connect()
    for count in (1, 2):
        path.ask(send_frame(count, "T", b"m", key="K", pid=bytes(16), seq=1, properties="DELAY\x011\x02"))
        sim.loop.run_until(lambda: len(path.replies) == count, 20, "an answer")  # noqa: B023 - called at once
    assert path.replies[1][0] == path.replies[2][0]
    wait_for(sim, 1)
    path.ask(send_frame(3, "T", b"m", key="K", pid=bytes(16), seq=1, properties="DELAY\x011\x02"))
    sim.loop.run_until(lambda: 3 in path.replies, 20, "an answer")
    sim.loop.run_for(5)
    assert len(delivered(sim)) == 1


def test_a_deleted_topic_takes_its_messages_along(sim: SimCluster) -> None:
    """The topic made again under the name inherits none."""
    assert send(sim, "DELAY\x011\x02")[0] == 0
    results = sim.propose(sim.leader(), DeleteTopic("T"))
    sim.loop.run_until(lambda: results, 10, "the deletion")
    sim.create_topic("T")
    sim.loop.run_until(lambda: sim.leader().state.timers.counts.dropped, 20, "the drop")
    assert sim.leader().state.timers.counts == TimerCounts(dropped=1)
    assert delivered(sim) == []
    assert send(sim, "DELAY\x011\x02")[0] == 0
    wait_for(sim, 1)


def test_fewer_queues_than_when_it_was_sent(sim: SimCluster) -> None:
    assert send(sim, "DELAY\x011\x02", queue_id=1)[0] == 0
    sim.create_topic("T", queues=1)
    wait_for(sim, 1)
    assert [message.queue_id for message in delivered(sim)] == [0]


def test_it_can_be_viewed_by_its_id_while_it_waits(sim: SimCluster) -> None:
    _, _, fields = send(sim, "DELAY\x013\x02", b"body")
    position = decode_message_id(fields["msgId"])[1]
    services = sim.leader().running.serving.services
    stored = message_at(services, position, waiting=True)
    assert stored is not None
    assert (stored.message.topic, stored.message.queue_id, stored.message.body) == ("SCHEDULE_TOPIC_XXXX", 2, b"body")
    assert message_at(services, position) is None, "no consumer can have it"


def test_an_idle_leader_looks_at_no_row(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert send(sim, "DELAY\x0118\x02")[0] == 0

    def looked(now_ms: int) -> Any:
        raise AssertionError("a row was looked at")

    monkeypatch.setattr(sim.leader().state.timers, "due", looked)
    sim.loop.run_for(30)
