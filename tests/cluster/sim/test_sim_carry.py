"""Messages that pin the log are carried forward (docs/adr/0054): retention goes on, and each is delivered once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.broker.reads.message_lookup import message_at
from cluster.broker.sends.redelivery import REPEATED_MS
from cluster.retention.disk_space import RESERVE_BYTES_MAX
from cluster.retention.pinned_messages import Slice
from raftmq_wire.codec import encode_frame
from raftmq_wire.message_format import Message, decode_message, decode_message_id
from statemachine.consuming.groups import PutGroup
from statemachine.removal_slices import DeleteTopic
from tests.support.sim_cluster import SELDOM_S, SimCluster, SimNode, codes, send_frame
from tests.support.transactions import COMMIT, ROLLBACK, Half, Producer

SEED = 21
SEGMENT = 1 << 14
KEPT = 2 * SEGMENT
SMALL = {
    "limits.message_bytes_max": 4096,
    "limits.batch_bytes_max": 8192,
    "limits.frame_bytes_max": 1 << 17,
    "retention.hours": 0,
    "retention.bytes_max": KEPT,
    "retention.delete_when": "",
    "retention.every_ms": 500,
    "transaction.timeout_ms": 60_000,
}
FILL = b"f" * 2000
SLOW = pytest.mark.slow


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> SimCluster:
    return sim_of(segment_size=SEGMENT, **SMALL)


def send(sim: SimCluster, body: bytes, properties: str = "", **more: Any) -> tuple[int, int]:
    """Sends and waits; position and queue offset of the answer."""
    path = sim.leader().connect()
    path.ask(send_frame(1, "T", body, properties=properties, **more))
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    code, remark, ext = path.replies[1][0]
    path.close()
    assert code == 0, remark
    fields = json.loads(ext)
    return decode_message_id(fields["msgId"])[1], int(fields["queueOffset"])


def delay(ms: int) -> str:
    return f"TIMER_DELAY_MS\x01{ms}\x02"


def fill(sim: SimCluster, segments: int = 1) -> None:
    """Writes as much log as that many segments."""
    for _ in range(segments * SEGMENT // len(FILL) + 1):
        send(sim, FILL)


def fill_and_wait(sim: SimCluster) -> None:
    """Retention has had every chance: there is more log than it keeps, and both checkpoints are beyond that."""
    for _ in range(5):
        fill(sim)
        sim.loop.run_for(0.8)


def trimmed_beyond(sim: SimCluster, position: int) -> None:
    """Fills the log until everybody's begins above the position."""
    for _ in range(12):
        if all(node.state.trim_position > position for node in sim.running):
            return
        fill(sim)
        sim.loop.run_for(0.8)
    raise AssertionError(f"the log is held: {sim.leader().running.keeping.retention.view(1)}")


def delivered(sim: SimCluster, topic: str = "T") -> list[Message]:
    """All but what only fills, from the leader's queues."""
    node, found = sim.leader(), []
    config = node.state.topics[topic]
    for queue_id in range(config.queues):
        low, high = (bound(config.id, queue_id) for bound in (node.state.min_offset, node.state.max_offset))
        items = node.state.fetch(config.id, queue_id, low, high - low)
        found += [decode_message(node.log.read_at(item.position, item.size))[0] for item in items]
    return [message for message in found if message.body != FILL]


def close_log(sim: SimCluster) -> None:
    sim.settle()
    sim.check_equal()
    assert sim.leader().state.lowest_pinned_position() is None
    assert all(node.state.timers.counts.pending == 0 for node in sim.running)


# --- timers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=SLOW)])
def test_a_timer_no_longer_holds_the_log_and_is_delivered_once(sim: SimCluster, times: int) -> None:
    position, _ = send(sim, b"later", delay(60_000) + "colour\x01blue\x02", key="K")
    stored = message_at(sim.leader().running.serving.services, position, waiting=True)
    assert stored is not None
    due_ms = sim.leader().state.timers.earliest
    pins = {position}
    for _ in range(times):
        trimmed_beyond(sim, max(pins))
        pins.add(sim.leader().state.lowest_pinned_position() or 0)
    assert len(pins) > times
    assert sim.leader().state.timers.earliest == due_ms
    again = message_at(sim.leader().running.serving.services, position, waiting=True)
    assert again is not None, "it is found by the id that its producer was given"
    assert again == stored
    sim.loop.run_for(3)
    log = [node.log.tail.end_position - node.state.trim_position for node in sim.running]
    assert max(log) <= KEPT + SEGMENT
    sim.loop.run_until(lambda: delivered(sim), 300, "it is delivered", every_s=SELDOM_S)
    (message,) = delivered(sim)
    assert (message.body, message.born_ms) == (b"later", stored.message.born_ms)
    assert message.store_ms >= due_ms
    sim.loop.run_for(5)
    assert len(delivered(sim)) == 1
    close_log(sim)


@SLOW
def test_the_log_with_a_timer_outgrows_the_log_without_it_by_a_segment_at_most(
    sim_of: Callable[..., SimCluster],
) -> None:
    """72 hours of retention and a timer of three days, in small: the same load twice, looked at after each segment."""
    kept_ms = 20_000
    rules = SMALL | {"retention.bytes_max": 0, "retention.ms": kept_ms}

    def sizes(delay_ms: int) -> list[int]:
        sim = sim_of(segment_size=SEGMENT, **rules)
        if delay_ms:
            send(sim, b"later", delay(delay_ms))
        found = []
        for _ in range(40):
            fill(sim)
            sim.loop.run_for(1.5)
            found.append(max(node.log.tail.end_position - node.state.trim_position for node in sim.running))
        assert sim.leader().state.timers.counts.pending == 0, "delivered meanwhile"
        return found

    without = sizes(0)
    assert max(without[20:]) <= max(without[:20]), "retention keeps up"
    largest = {delay_ms: max(sizes(delay_ms)) for delay_ms in (kept_ms, 2 * kept_ms)}
    assert max(largest.values()) <= max(without) + SEGMENT, (max(without), largest)


def test_messages_of_one_moment_come_in_the_order_in_which_they_were_first_stored(sim: SimCluster) -> None:
    due = sim.leader().raw.log_time_ms() + 40_000
    first, _ = send(sim, b"first", f"TIMER_DELIVER_MS\x01{due}\x02", queue_id=1)
    trimmed_beyond(sim, first)
    send(sim, b"second", f"TIMER_DELIVER_MS\x01{due}\x02", queue_id=1)
    assert (sim.leader().state.lowest_pinned_position() or 0) > first
    sim.loop.run_until(lambda: len(delivered(sim)) == 2, 300, "both", every_s=SELDOM_S)
    assert [message.body for message in delivered(sim)] == [b"first", b"second"]


def test_nothing_is_carried_while_retention_wants_nothing(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(segment_size=SEGMENT, **{**SMALL, "retention.bytes_max": 1 << 20})
    position, _ = send(sim, b"later", delay(600_000))
    fill_and_wait(sim)
    assert sim.leader().state.lowest_pinned_position() == position


def test_a_log_of_which_most_waits_is_left_alone(sim: SimCluster) -> None:
    """Else it would be written again and again, and never become shorter."""
    for number in range(40):
        send(sim, b"x" * 2000, delay(900_000 + number))
    for _ in range(4):  # what retention does follows two checkpoints
        send(sim, FILL)
        sim.loop.run_for(1)
    end = sim.leader().log.tail.end_position
    sim.loop.run_for(20)
    assert sim.leader().log.tail.end_position - end < SEGMENT
    view = sim.leader().running.keeping.retention.view(1)
    assert "more than half" in view.carry_held_by
    assert view.pinned_log_bytes > 0
    assert (view.pinned_timers, view.pinned_message_bytes > 80_000) == (40, True)
    assert sim.leader().state.timers.counts.pending == 40


def test_a_timer_of_a_deleted_topic_is_dropped_before_it_is_due(sim: SimCluster) -> None:
    sim.create_topic("U")
    path = sim.leader().connect()
    path.ask(send_frame(1, "U", b"m", properties=delay(900_000)))
    sim.loop.run_until(lambda: path.replies, 20, "an answer")
    position = sim.leader().state.lowest_pinned_position()
    results = sim.propose(sim.leader(), DeleteTopic("U"))
    sim.loop.run_until(lambda: results, 10, "the deletion")
    assert position is not None
    trimmed_beyond(sim, position)
    assert sim.leader().state.timers.counts.dropped == 1
    close_log(sim)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in range(1, 8))])
def test_nothing_is_lost_or_doubled_when_leaders_change_while_they_carry(seed: int) -> None:
    with SimCluster(seed, segment_size=SEGMENT, **SMALL) as sim:
        sim.create_topic("T")
        path = sim.leader().connect()
        sent = [b"m%d" % number for number in range(20)]
        due = sim.leader().raw.log_time_ms() + 40_000
        for number, body in enumerate(sent):
            path.ask(send_frame(number, "T", body, properties=f"TIMER_DELIVER_MS\x01{due + number % 7 * 500}\x02"))
        sim.loop.run_until(lambda: len(path.replies) == len(sent), 20, "answers")
        for _ in range(3):
            fill(sim, 2)
            old = sim.leader()
            carrier = old.running.keeping.retention._carrier
            assert carrier is not None
            for _ in range(40):
                if carrier.busy:
                    break
                fill_once(sim)
            if sim.rng.random() < 0.5:
                sim.isolate(old)
            else:
                old.kill(power=False)
            sim.leader(besides=old)
            sim.loop.run_for(1.0)
            sim.heal()
        sim.settle()
        trimmed_beyond(sim, sim.leader().state.trim_position)
        sim.loop.run_until(lambda: len(delivered(sim)) >= len(sent), 400, "all of them", every_s=SELDOM_S)
        sim.loop.run_for(10)
        messages = delivered(sim)
        assert sorted(message.body for message in messages) == sorted(sent)
        assert min(message.store_ms for message in messages) >= due
        close_log(sim)


@pytest.mark.parametrize("proposed", [pytest.param(False, marks=SLOW), True])
def test_a_leader_that_goes_with_what_it_has_read_leaves_it_to_the_next(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch, proposed: bool
) -> None:
    """The leader goes before it has appended it, or when nobody else has the entry."""
    position, _ = send(sim, b"later", delay(60_000))
    old, gone = sim.leader(), []
    carrier = old.running.keeping.retention._carrier
    assert carrier is not None
    append = carrier.append

    def leave(read: Slice, drops: list[Any], settled: Callable[[bool], None]) -> None:
        gone.append(read)
        sim.isolate(old)
        if proposed:
            append(read, drops, settled)

    monkeypatch.setattr(carrier, "append", leave)
    for _ in range(12):
        if gone:
            break
        fill(sim)
        sim.loop.run_for(0.6)
    assert [row.name for row in gone[0].rows] == [position]
    sim.leader(besides=old)
    sim.loop.run_for(1)
    sim.mend()
    monkeypatch.undo()
    trimmed_beyond(sim, position)
    sim.loop.run_until(lambda: delivered(sim), 90, "it is delivered", every_s=SELDOM_S)
    sim.loop.run_for(5)
    assert [message.body for message in delivered(sim)] == [b"later"]
    close_log(sim)


def fill_once(sim: SimCluster) -> None:
    path = sim.leader().connect()
    path.ask(send_frame(1, "T", FILL))
    sim.loop.run_for(0.02)


def test_a_message_that_cannot_be_read_holds_the_log_and_the_others_go_on(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _ = send(sim, b"bad", delay(900_000))
    good, _ = send(sim, b"good", delay(900_000))
    damaged: list[int] = []
    for node in sim.running:
        carrier = node.running.keeping.retention._carrier
        assert carrier is not None
        monkeypatch.setattr(carrier, "_report_damage", lambda position, size: damaged.append(position))
        read = node.log.read_at
        monkeypatch.setattr(
            node.running.keeping.retention._lane._log,
            "read_at",
            lambda position, size, read=read: bytes(size) if position == bad else read(position, size),
        )
    fill_and_wait(sim)
    state = sim.leader().state
    assert state.lowest_pinned_position() == bad
    assert state.trim_position <= bad
    assert set(damaged) == {bad}
    found = state.timers.at(good)
    assert found is not None
    assert found[1].position > good
    monkeypatch.undo()
    trimmed_beyond(sim, bad)


def test_a_full_disk_gets_room_although_it_takes_no_sends(sim_of: Callable[..., SimCluster]) -> None:
    """Due messages are not delivered meanwhile; they are carried with the rest."""
    sim = sim_of(segment_size=SEGMENT, **{**SMALL, "retention.bytes_max": 1 << 20})
    soon, _ = send(sim, b"soon", delay(20_000))
    later, _ = send(sim, b"later", delay(400_000))
    fill_and_wait(sim)
    sim.loop.run_for(5)
    for node in sim.running:
        node.fs.fill(2 * RESERVE_BYTES_MAX)
    sim.loop.run_until(lambda: sim.leader().proposals.refusing, 5, "the disk is full")
    for node in sim.running:
        node.running.keeping.retention.reload(replace(node.running.config.retention, bytes_max=KEPT))
    sim.loop.run_until(lambda: sim.leader().state.trim_position > later, 120, "the log is trimmed")
    state = sim.leader().state
    assert [row.position for row in state.timers.due(1 << 62)] == [soon, later]
    sim.loop.run_until(lambda: sim.leader().raw.log_time_ms() > state.timers.earliest + 1000, 30, "one is due")
    assert delivered(sim) == []
    for node in sim.running:
        node.fs.fill(1 << 40)
    sim.loop.run_until(lambda: delivered(sim), 20, "there is room")
    assert [message.body for message in delivered(sim)] == [b"soon"]


# --- half messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [pytest.param(1, marks=SLOW), 2])
@pytest.mark.parametrize(("wish", "copies"), [(COMMIT, 1), (ROLLBACK, 0)])
def test_a_half_message_ends_by_the_position_that_its_producer_knows(
    sim: SimCluster, wish: int, copies: int, times: int
) -> None:
    half = Producer(sim.leader()).send(sim, "K1", b"body")
    before = sim.leader().state.halves.get(half.position)
    assert before is not None
    for _ in range(times):
        trimmed_beyond(sim, sim.leader().state.lowest_pinned_position() or 0)
    now = sim.leader().state.halves.get(half.position)
    assert now is not None
    assert now._replace(moved_to=None, crc32c=0) == before._replace(crc32c=0)
    assert now.place > half.position
    producer = Producer(sim.leader())
    wrong = Half(now.place, now.place, "K1", 0)
    producer.end(wrong, COMMIT, oneway=False)
    assert producer.ask_to_end(sim, half, wish)[0] == 0
    assert producer.ask_to_end(sim, half, COMMIT)[0] == 0, "said again"
    sim.settle()
    messages = delivered(sim)
    assert [message.body for message in messages] == [b"body"] * copies
    assert [message.prepared_position for message in messages] == [half.position] * copies
    close_log(sim)


def test_a_check_names_the_old_position(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(
        segment_size=SEGMENT, **{**SMALL, "transaction.timeout_ms": 20_000, "transaction.check_interval_ms": 500}
    )
    half = Producer(sim.leader()).send(sim, "K1", b"body")
    trimmed_beyond(sim, half.position)
    producer = Producer(sim.leader())
    sim.loop.run_until(lambda: producer.checks, 90, "it is asked about")
    ext, message = producer.checks[0]
    assert (int(ext["commitLogOffset"]), int(ext["tranStateTableOffset"])) == (half.position, half.offset)
    assert (message.body, ext["msgId"]) == (b"body", "K1")
    producer.end(half, COMMIT)
    sim.loop.run_until(lambda: delivered(sim), 20, "the copy")
    sim.loop.run_for(5)
    assert [message.body for message in delivered(sim)] == [b"body"]
    close_log(sim)


# --- what failed ---------------------------------------------------------------------------------------------------


def test_a_report_of_a_failure_is_recognised_while_its_carried_copy_waits(sim: SimCluster) -> None:
    results = sim.propose(sim.leader(), PutGroup({"name": "G"}, True))
    sim.loop.run_until(lambda: results, 10, "the group")
    failed, _ = send(sim, b"failed")
    assert report(sim, sim.leader(), failed) == 0
    pin = sim.leader().state.lowest_pinned_position()
    assert pin is not None
    trimmed_beyond(sim, pin)
    sim.loop.run_for(REPEATED_MS / 1000)
    assert report(sim, sim.leader(), failed) == 0
    assert sim.leader().state.timers.counts.pending == 1
    sim.loop.run_until(lambda: delivered(sim, "%RETRY%G"), 90, "it comes again", every_s=SELDOM_S)
    assert [message.body for message in delivered(sim, "%RETRY%G")] == [b"failed"]


def report(sim: SimCluster, node: SimNode, position: int) -> int:
    """Request 36 with the longest delay; the code of the answer."""
    path = node.connect()
    ext = {"group": "G", "offset": str(position), "delayLevel": "6", "originTopic": "T", "maxReconsumeTimes": "16"}
    path.ask(encode_frame(36, 1, 0, ext=ext))
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    return codes(path, 1)[0]
