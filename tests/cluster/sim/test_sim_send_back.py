"""CONSUMER_SEND_MSG_BACK (36): the message is kept for its group, under any leader, whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.sends.redelivery import copied_properties
from cluster.replication.outcome import Outcome
from raftlog.types import Entry, EntryType
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, JSON, encode_frame
from raftmq_wire.message_format import (
    PROPERTIES_BYTES_MAX,
    Message,
    decode_message,
    decode_message_id,
    encode_message_id,
)
from raftmq_wire.properties import parse_properties, without
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.queue_locks import LockQueues
from statemachine.payload import RowKind, decode
from statemachine.removal_slices import DeleteTopic
from tests.support.sim_cluster import SELDOM_S, ClientPath, SimCluster, SimNode, codes, send_frame

SMALL = {"limits.message_bytes_max": 4096, "limits.batch_bytes_max": 8192, "limits.frame_bytes_max": 1 << 17}


@pytest.fixture
def sim() -> Any:
    with SimCluster(7, **SMALL) as cluster:
        cluster.create_topic("T")
        results = cluster.propose(cluster.leader(), PutGroup({"name": "g", "retry_max_times": 2}, False))
        cluster.loop.run_until(lambda: results, 10, "the group")
        assert results[0].outcome is Outcome.OK
        yield cluster


def send(sim: SimCluster, body: bytes = b"m", **more: Any) -> int:
    """Sends one message to T; returns its position."""
    path = sim.leader().connect()
    properties = "TAGS\x01red\x02KEYS\x01one two\x02colour\x01blue\x02"
    path.ask(send_frame(1, "T", body, key="K1", properties=properties, **more))
    sim.loop.run_until(lambda: 1 in path.replies, 10, "the send")
    message_id = json.loads(path.replies[1][0][2])["msgId"]
    return decode_message_id(message_id)[1]


def back(
    offset: int, opaque: int = 1, version: int = 401, serialize_type: int = JSON, flag: int = 0, **ext: Any
) -> bytes:
    fields = {"group": "g", "offset": offset, "delayLevel": 0, "originTopic": "T", **ext}
    return encode_frame(
        36,
        opaque,
        flag,
        ext={name: str(value) for name, value in fields.items() if value is not None},
        serialize_type=serialize_type,
        version=version,
        language="JAVA",
    )


def ask(sim: SimCluster, offset: int, node: SimNode | None = None, **fields: Any) -> tuple[int, str]:
    """One request through a new connection: code and remark."""
    path = (node or sim.leader()).connect()
    path.ask(back(offset, **fields))
    sim.loop.run_until(lambda: 1 in path.replies, 20, "an answer")
    assert len(codes(path, 1)) == 1
    return path.replies[1][0][:2]


def stored(node: SimNode, topic: str) -> list[tuple[int, Message]]:
    """(position, message) of queue 0, as the node would serve them."""
    config = node.state.topics.get(topic)
    if config is None:
        return []
    items = node.state.fetch(config.id, 0, 0, 1000)
    return [(i.position, decode_message(node.log.read_at(i.position, i.size))[0]) for i in items]


def copies(sim: SimCluster, count: int, topic: str = "%RETRY%g") -> list[tuple[int, Message]]:
    """Returns the messages that were sent back, once as many have come; one more would be there soon after."""
    sim.loop.run_until(lambda: len(stored(sim.leader(), topic)) >= count, 200, f"{count} copies", every_s=SELDOM_S)
    sim.loop.run_for(5)
    found = stored(sim.leader(), topic)
    assert len(found) == count
    return found


def waits_ms(sim: SimCluster) -> list[int]:
    """Returns the time that each waiting message has still to wait, about."""
    leader = sim.leader()
    return [row.due_ms - leader.raw.log_time_ms() for row in leader.state.timers.due(1 << 62)]


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize("leads", [True, False])
def test_the_copy_is_the_message_with_its_history(sim: SimCluster, leads: bool, serialize_type: int) -> None:
    position = send(sim, b"body")
    node = sim.leader() if leads else sim.followers()[0]
    assert ask(sim, position, node, serialize_type=serialize_type)[0] == 0
    assert stored(sim.leader(), "%RETRY%g") == []
    ((_, copy),) = copies(sim, 1)
    sim.settle()
    sim.check_equal()
    (original,) = [message for at, message in stored(sim.leader(), "T") if at == position]
    assert (copy.body, copy.flag, copy.born_ms, copy.born_host) == (
        original.body,
        original.flag,
        original.born_ms,
        original.born_host,
    )
    assert copy.reconsume_times == 1
    properties = parse_properties(copy.properties)
    assert properties.pop("RETRY_TOPIC") == "T"
    assert decode_message_id(properties.pop("ORIGIN_MESSAGE_ID")) == (original.store_host, position)
    assert (properties.pop("REAL_TOPIC"), properties.pop("REAL_QID")) == ("%RETRY%g", "0")
    assert properties == parse_properties(original.properties)
    assert properties["UNIQ_KEY"] == "K1"
    config = sim.leader().state.topics["%RETRY%g"]
    assert (config.read_queues, config.write_queues, config.perm) == (1, 1, 6)


def test_at_the_maximum_it_goes_to_the_dead_letters(sim: SimCluster) -> None:
    position = send(sim)
    first = position
    for times in (1, 2):
        assert ask(sim, position)[0] == 0
        position, copy = copies(sim, times)[-1]
        assert copy.reconsume_times == times
        assert copy.queue_offset == times - 1
    assert ask(sim, position)[0] == 0
    ((_, dead),) = stored(sim.leader(), "%DLQ%g")
    properties = parse_properties(dead.properties)
    assert properties["RETRY_TOPIC"] == "T"
    assert decode_message_id(properties["ORIGIN_MESSAGE_ID"])[1] == first, "the first of all, not the copy before"
    assert len(stored(sim.leader(), "%RETRY%g")) == 2
    assert sim.leader().state.topics["%DLQ%g"].queues == 1


def set_group(sim: SimCluster, **config: Any) -> None:
    results = sim.propose(sim.leader(), PutGroup({"name": "g", **config}, False))
    sim.loop.run_until(lambda: results, 10, "the group")
    assert results[0].outcome is Outcome.OK


def test_a_group_without_retry_queues_drops_what_failed(sim: SimCluster) -> None:
    set_group(sim, retry_queue_nums=0)
    assert ask(sim, send(sim))[0] == 0
    assert ask(sim, send(sim, b"n"), delayLevel=-1)[0] == 0
    sim.loop.run_for(30)
    assert sim.leader().state.topics.keys().isdisjoint({"%RETRY%g", "%DLQ%g"})
    assert sim.leader().state.timers.counts.pending == 0


def test_a_retry_topic_has_as_many_queues_as_its_group_wants(sim: SimCluster) -> None:
    set_group(sim, retry_queue_nums=3)
    for body in (b"1", b"2", b"3"):
        assert ask(sim, send(sim, body))[0] == 0
    topic = sim.leader().state.topics["%RETRY%g"]
    assert (topic.read_queues, topic.write_queues) == (3, 3)
    assert sorted(row.queue_id for row in sim.leader().state.timers.due(1 << 62)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "topic"),
    [
        ({"maxReconsumeTimes": 0}, "%DLQ%g"),
        ({"maxReconsumeTimes": 1}, "%RETRY%g"),
        ({"maxReconsumeTimes": -1}, "%RETRY%g"),
        ({"maxReconsumeTimes": 0, "version": 63}, "%RETRY%g"),
        ({"delayLevel": -1}, "%DLQ%g"),
        ({"delayLevel": 18}, "%RETRY%g"),
        ({"originTopic": None}, "%RETRY%g"),
    ],
)
def test_who_decides_where_it_goes(sim: SimCluster, fields: dict[str, Any], topic: str) -> None:
    assert ask(sim, send(sim), **fields)[0] == 0
    waiting = sim.leader().state.timers.counts.pending
    assert (waiting, len(stored(sim.leader(), "%DLQ%g"))) == ((0, 1) if topic == "%DLQ%g" else (1, 0))


@pytest.mark.parametrize(("level", "seconds"), [(0, 10), (1, 1), (5, 60), (18, 7200), (99, 7200)])
def test_how_long_it_waits(sim: SimCluster, level: int, seconds: int) -> None:
    assert ask(sim, send(sim), delayLevel=level)[0] == 0
    (left,) = waits_ms(sim)
    assert seconds * 1000 - 1000 < left <= seconds * 1000


def test_each_failure_waits_a_level_longer(sim: SimCluster) -> None:
    position = send(sim)
    for times, seconds in enumerate((10, 30, 60), 1):
        assert ask(sim, position, maxReconsumeTimes=9)[0] == 0
        (left,) = waits_ms(sim)
        assert seconds * 1000 - 1000 < left <= seconds * 1000
        position, _ = copies(sim, times)[-1]


@pytest.mark.parametrize("dead", [False, True])
def test_a_failure_reported_twice_leaves_one_copy(sim: SimCluster, dead: bool) -> None:
    position = send(sim)
    fields = {"delayLevel": -1} if dead else {}
    assert [ask(sim, position, node, **fields)[0] for node in (sim.leader(), *sim.followers())] == [0, 0, 0]
    assert len(copies(sim, 1, "%DLQ%g" if dead else "%RETRY%g")) == 1


def test_reports_that_meet_in_flight_share_the_copy(sim: SimCluster) -> None:
    position = send(sim)
    ask(sim, send(sim, b"other"))  # the topic is there
    path, other = sim.leader().connect(), sim.leader().connect()
    path.ask(back(position, 7))
    other.ask(back(position, 8))
    path.ask(back(position, 9))
    sim.loop.run_until(lambda: len(path.replies) == 2 and other.replies, 10, "answers")
    assert codes(path, 7) == codes(other, 8) == codes(path, 9) == [0]
    assert [message.body for _, message in copies(sim, 2)].count(b"m") == 1


def test_another_leader_recognises_the_report(sim: SimCluster) -> None:
    position = send(sim)
    old = sim.leader()
    assert ask(sim, position)[0] == 0
    sim.isolate(old)
    new = sim.leader(besides=old)
    assert ask(sim, position, new)[0] == 0
    sim.mend()
    assert len(copies(sim, 1)) == 1


def test_a_group_that_consumes_anew_may_fail_anew(sim: SimCluster) -> None:
    """The copy was delivered, and then the group's offsets were reset."""
    position = send(sim)
    assert ask(sim, position)[0] == 0
    copies(sim, 1)
    sim.loop.run_for(60)
    assert ask(sim, position)[0] == 0
    copies(sim, 2)


def test_a_dead_letter_reported_twice_is_one_whatever_came_of_the_message_before(sim: SimCluster) -> None:
    """It came again once, its offset was not committed, and who consumed it anew gave it up."""
    position = send(sim)
    assert ask(sim, position)[0] == 0
    copies(sim, 1)
    sim.loop.run_for(60)
    assert [ask(sim, position, delayLevel=-1)[0] for _ in range(2)] == [0, 0]
    copies(sim, 1, "%DLQ%g")


def test_a_message_that_waits_cannot_have_failed(sim: SimCluster) -> None:
    assert ask(sim, send(sim))[0] == 0
    (row,) = sim.leader().state.timers.due(1 << 62)
    code, remark = ask(sim, row.position, originTopic=None)
    assert (code, "no message that you may read" in remark) == (1, True)


def test_copies_are_rows_of_their_own_kind_and_no_part_of_dedup(sim: SimCluster) -> None:
    leader = sim.leader()
    entries: list[Entry] = []
    apply = leader.state.apply
    leader.state.apply = lambda run: entries.extend(run) or apply(run)  # type: ignore[method-assign, assignment]
    position, other = send(sim), send(sim)
    del entries[:-1]
    ask(sim, position)
    ask(sim, other, delayLevel=-1)
    payloads = [decode(bytes(entry.payload)) for entry in entries if entry.type == EntryType.MESSAGES]
    kinds = [(run.kind, bool(payload.sessions)) for payload in payloads for run in payload.decoded_runs()]
    assert kinds == [(RowKind.NORMAL, True), (RowKind.SCHEDULED, False), (RowKind.DEAD_LETTER, False)]


def test_a_copy_is_found_by_its_keys(sim: SimCluster) -> None:
    ask(sim, send(sim))
    copies(sim, 1)
    state = sim.leader().state
    index, topic = state.message_index, state.topics["%RETRY%g"]
    bucket = index.bucket_below((1 << 64) - 1)
    assert bucket is not None
    for key in (b"K1", b"one", b"two"):
        assert [p for batch in index.candidates(bucket, topic.id, key) for p in batch], key


def refusals(position: int) -> list[tuple[dict[str, Any], int, str]]:
    return [
        ({"offset": position + 1}, 1, "no message"),
        ({"offset": position - 40}, 1, "no message"),
        ({"offset": 1 << 40}, 1, "not within the log"),
        ({"offset": (1 << 63) - 1}, 1, "not within the log"),
        ({"offset": -1}, 29, "allowed are 0 to"),
        ({"offset": 1 << 63}, 29, "64 bits"),
        ({"offset": "x"}, 29, "as an integer"),
        ({"offset": ""}, 29, "as an integer"),
        ({"originTopic": "U"}, 1, "of topic T, not U"),
        ({"group": ""}, 29, "needs field group"),
        ({"group": "a b"}, 29, "must have"),
        ({"group": "h", "offset": position + 1}, 1, "no message"),
        ({"delayLevel": 1 << 40}, 29, "allowed are"),
        ({"maxReconsumeTimes": -(1 << 40)}, 29, "allowed are"),
    ]


def test_what_cannot_be_sent_back_is_refused_in_words(sim: SimCluster) -> None:
    position = send(sim)
    index = sim.leader().raw.last_index
    for fields, code, words in refusals(position):
        offset = fields.pop("offset", position)
        got, remark = ask(sim, offset, **fields)
        assert (got, words in remark) == (code, True), (fields, offset, remark)
    assert sim.leader().raw.last_index == index, "nothing was proposed"


def test_a_message_whose_topic_is_gone_or_another(sim: SimCluster) -> None:
    position = send(sim)
    results = sim.propose(sim.leader(), DeleteTopic("T"))
    sim.loop.run_until(lambda: results, 10, "deleted")
    why = f"no message that you may read begins at position {position}"
    assert ask(sim, position) == (1, f"no message to send back at offset {position}: {why}")
    sim.create_topic("T")
    assert ask(sim, position)[0] == 1


WHERE = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01c\x02"
"""What each send gets, in a cluster with a short name."""
ORIGIN = (b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID", b"RAFTMQ_NO_ORIGIN")
NAMED = b"RETRY_TOPIC\x01%b\x02ORIGIN_MESSAGE_ID\x01" + encode_message_id(("10.0.0.1", 1), 7).encode() + b"\x02"


def origin_of(properties: bytes, topic: str = "T") -> bytes:
    """What the copy of a message with these properties has instead of them, or in addition."""
    made = copied_properties(Message(topic, b"", properties, position=7, store_host=("10.0.0.1", 1)))
    assert len(made) <= PROPERTIES_BYTES_MAX
    own = without(properties, *[mark + b"\x01" for mark in ORIGIN])
    return made.removeprefix(own) if made.startswith(own) else made.removeprefix(own.removesuffix(WHERE)) + b" alone"


@pytest.mark.parametrize("mark", [*ORIGIN, b"RETRY_TOPIC\x01a\x02RETRY_TOPIC"])
def test_a_sender_does_not_say_of_what_it_is_a_copy(mark: bytes) -> None:
    theirs = b"a\x01b\x02" + mark + b"\x01theirs\x02c\x01d\x02"
    assert origin_of(theirs) == NAMED % b"T"


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_a_copy_does(topic: str) -> None:
    """Also one that a Java or Go client has sent itself."""
    first = copied_properties(Message("T", b"", b"a\x01b", position=7))
    assert copied_properties(Message(topic, b"", first, position=8)) == first
    lost = b"RAFTMQ_NO_ORIGIN\x01true\x02"
    assert copied_properties(Message(topic, b"", lost, position=8)) == lost
    assert copied_properties(Message(topic, b"", b"a\x01b\x02", position=7)).startswith(b"a\x01b\x02RETRY_TOPIC\x01%")


@pytest.mark.parametrize(
    ("free", "origin"),
    [
        (200, NAMED % b"T"),
        (len(NAMED % b"T"), NAMED % b"T"),
        (len(NAMED % b"T") - 1, NAMED % b"T" + b" alone"),
        (len(NAMED % b"T") - len(WHERE), NAMED % b"T" + b" alone"),
        (len(NAMED % b"T") - len(WHERE) - 1, b"RAFTMQ_NO_ORIGIN\x01true\x02RETRY_TOPIC\x01T\x02 alone"),
        (0, b"RAFTMQ_NO_ORIGIN\x01true\x02RETRY_TOPIC\x01T\x02 alone"),
    ],
)
def test_the_origin_has_its_room_or_the_copy_says_that_it_had_none(free: int, origin: bytes) -> None:
    filler = PROPERTIES_BYTES_MAX - len(WHERE) - free - 3
    assert origin_of(b"a\x01" + b"b" * filler + b"\x02" + WHERE) == origin


def test_a_long_topic_has_no_room_but_the_copy_says_so() -> None:
    full = b"a\x01" + b"b" * (PROPERTIES_BYTES_MAX - len(WHERE) - 3) + b"\x02" + WHERE
    assert origin_of(full, "t" * 127) == b"RAFTMQ_NO_ORIGIN\x01true\x02 alone"


@pytest.mark.parametrize("more", ["", "TIMER_DELAY_MS\x01500\x02", "REAL_TOPIC\x01theirs\x02"])
def test_the_longest_properties_come_back_whole(sim: SimCluster, more: str) -> None:
    """They fill what a stored message can hold, whatever the broker adds at each step."""
    path = sim.leader().connect()
    for opaque, length in enumerate(range(32_767, 32_500, -1), start=1):
        path.ask(send_frame(opaque, "T", b"m", key="K", properties=f"{more}a\x01{'b' * length}\x02"))
        sim.loop.run_until(lambda: len(path.replies) == opaque, 10, "an answer")  # noqa: B023
        if codes(path, opaque) == [0]:
            break
    sim.loop.run_until(lambda: stored(sim.leader(), "T"), 10, "the message")
    ((position, original),) = stored(sim.leader(), "T")
    assert PROPERTIES_BYTES_MAX - 40 < len(original.properties) <= PROPERTIES_BYTES_MAX
    assert ask(sim, position)[0] == 0
    ((_, copy),) = copies(sim, 1)
    assert len(copy.properties) <= PROPERTIES_BYTES_MAX
    found = parse_properties(copy.properties)
    assert found["RETRY_TOPIC"] == "T"
    assert ("ORIGIN_MESSAGE_ID" in found) != ("RAFTMQ_NO_ORIGIN" in found)
    assert found.get("REAL_TOPIC") in (None, "%RETRY%g")
    assert found["a"] == parse_properties(original.properties)["a"]


def test_a_leader_that_loses_its_office_makes_no_copy_later(sim: SimCluster) -> None:
    """A copy that is queued dies with the term; the report is refused, and may come again anywhere."""
    position = send(sim)
    ask(sim, send(sim, b"other"), delayLevel=18)  # the topic is there
    old = sim.leader()
    path = old.connect()
    sim.isolate(old)
    for number in range(old.config.limits.batches_inflight_max + 2):
        path.ask(back(position, opaque=10 + number))
    sim.leader(besides=old)
    sim.mend()
    count = old.config.limits.batches_inflight_max + 2
    sim.loop.run_until(lambda: all(10 + n in path.replies for n in range(count)), 30, "answers")
    outcomes = {path.replies[10 + n][0][:2] for n in range(count)}
    assert len(outcomes) == 1, "they are of one failure, and wait for one copy"
    sim.settle()
    sim.check_equal()
    assert ask(sim, position)[0] == 0
    ((_, copy),) = copies(sim, 1)
    assert (copy.body, copy.reconsume_times) == (b"m", 1)


def test_a_copy_whose_outcome_was_unknown_is_known_on_a_leader_that_is_never_idle(sim: SimCluster) -> None:
    """The first report was answered before its copy was applied. The copy is delivered, the group consumes anew, and
    the message fails again, in a stream of sends."""
    position = send(sim)
    ask(sim, send(sim, b"other"), delayLevel=18)  # the topic is there
    leader = sim.leader()
    path = leader.connect()
    path.ask(back(position, 7))
    sim.loop.turn_until(lambda: leader.undecided)
    leader.apply.hold()
    sim.loop.run_until(lambda: 7 in path.replies, 60, "an answer")
    assert path.replies[7][0][1].startswith("[UNKNOWN]")
    leader.apply.release()
    copies(sim, 1)
    sim.loop.run_for(60)
    stream = leader.connect()
    for number in range(100, 300):
        stream.ask(send_frame(number, "T", b"%d" % number))
        if number == 200:
            path.ask(back(position, 8))
        sim.loop.run_for(0.0002)
        assert number < 150 or not leader.proposals.idle
    sim.loop.run_until(lambda: 8 in path.replies, 20, "an answer")
    assert path.replies[8][0][:2] == (0, "")
    copies(sim, 2)


def test_oneway_is_kept_and_not_answered(sim: SimCluster) -> None:
    position = send(sim)
    path = sim.leader().connect()
    path.ask(back(position, flag=FLAG_ONEWAY))
    sim.loop.run_for(1.0)
    assert path.replies == {}
    copies(sim, 1)


def test_a_full_connection_is_told_so(sim: SimCluster) -> None:
    position = send(sim, b"x" * 4000)
    leader = sim.leader()
    path = leader.connect()
    leader.proposals.gate.hold_answer(path.in_flight, leader.config.limits.connection_inflight_bytes_max - 100)
    path.ask(back(position))
    sim.loop.run_until(lambda: 1 in path.replies, 10, "an answer")
    assert path.replies[1][0][0] == 2
    assert "connection_inflight_bytes_max" in path.replies[1][0][1]
    assert leader.refused == {"busy": 1}


def fallback(sim: SimCluster, path: ClientPath, opaque: int, times: int, *, version: int = 401, **ext: str) -> int:
    """Sends what a consumer sends itself when 36 was refused."""
    properties = "UNIQ_KEY\x01K9\x02RETRY_TOPIC\x01T\x02DELAY\x014\x02colour\x01blue\x02"
    fields = {
        "a": "g",
        "b": "%RETRY%g",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "g": "1700000000000",
        "i": properties,
        "j": str(times),
        "m": "false",
        **ext,
    }
    path.ask(encode_frame(310, opaque, 0, ext=fields, body=b"m", language="JAVA", version=version))
    sim.loop.run_until(lambda: opaque in path.replies, 10, "an answer")
    return codes(path, opaque)[0]


def test_a_consumer_that_sends_it_back_itself(sim: SimCluster) -> None:
    path = sim.leader().connect()
    assert fallback(sim, path, 1, 2) == 0
    (left,) = waits_ms(sim)
    assert 29_000 < left <= 30_000, "the level that it asks for, 4"
    ((_, kept),) = copies(sim, 1)
    assert kept.reconsume_times == 2
    assert "DELAY" not in parse_properties(kept.properties)
    assert parse_properties(kept.properties)["colour"] == "blue"
    assert fallback(sim, path, 2, 3) == 0
    assert fallback(sim, path, 3, 1, l="0") == 0
    assert len(stored(sim.leader(), "%DLQ%g")) == 2, "past the group's maximum, and the request's own"
    assert fallback(sim, path, 4, 3, l="9") == 0
    copies(sim, 2)


OLD, NEW = 433, 435  # RocketMQ 5.1.0 and 5.1.1


@pytest.mark.parametrize(
    ("version", "times", "level", "dead"),
    [
        # What orderly consumers give up after 3 tries of 2 more than the first: those before the last, or all.
        (409, 2, 5, True),
        (OLD, 2, 5, True),
        (NEW, 3, 5, True),
        # What concurrent ones send when 36 was refused: they count the one that failed, and one is left.
        (409, 2, 4, False),
        (OLD, 2, 4, False),
        (NEW, 2, 4, False),
        (409, 3, 5, True),
        (NEW, 2, 5, False),
        # Others, which say nothing.
        (409, 2, None, True),
        (409, 1, None, False),
        (NEW, 2, None, False),
    ],
)
def test_which_count_is_past_the_maximum(
    sim: SimCluster, version: int, times: int, level: int | None, dead: bool
) -> None:
    path = sim.leader().connect()
    properties = "UNIQ_KEY\x01K9\x02RETRY_TOPIC\x01T\x02" + (f"DELAY\x01{level}\x02" if level else "")
    assert fallback(sim, path, 1, times, version=version, i=properties, l="2") == 0
    assert bool(stored(sim.leader(), "%DLQ%g")) == dead


def test_a_lock_sends_nothing_to_the_dead_letters(sim: SimCluster) -> None:
    leader = sim.leader()
    path = leader.connect()
    sim.loop.run_until(lambda: leader.running.serving.services.writes_open(), 10, "a leader")
    now_ms, topic = leader.raw.log_time_ms(), leader.state.topics["T"].id
    results = sim.propose(leader, LockQueues("g", "c", now_ms, now_ms + 60_000, [(topic, 0)]))
    sim.loop.run_until(lambda: results, 10, "the lock")
    assert leader.state.locks_of_group("g")
    assert fallback(sim, path, 1, 2, version=NEW) == 0
    assert stored(leader, "%DLQ%g") == []


def test_a_group_that_nobody_knows_is_made(sim: SimCluster) -> None:
    """A consumer may send back before its first heartbeat."""
    position = send(sim)
    assert ask(sim, position, node=sim.followers()[0], group="new")[0] == 0
    assert sim.leader().state.groups["new"].retry_max_times == 16
    assert len(copies(sim, 1, "%RETRY%new")) == 1


def test_who_names_no_message_makes_no_group(sim: SimCluster) -> None:
    assert ask(sim, send(sim) + 1, group="new")[0] == 1
    assert "new" not in sim.leader().state.groups


def test_no_more_groups_are_made_than_are_allowed() -> None:
    with SimCluster(7, **SMALL | {"limits.groups_max": 64}) as sim:
        sim.create_topic("T")
        position = send(sim)
        leader = sim.leader()
        made = [sim.propose(leader, PutGroup({"name": f"g{n}"}, True)) for n in range(64)]
        sim.loop.run_until(lambda: all(made), 10, "the groups")
        code, remark = ask(sim, position, group="more")
        assert (code, "limits.groups_max" in remark) == (14, True)
        assert "more" not in leader.state.groups


def test_strict_dedup_never_swallows_what_is_sent_back(sim: SimCluster) -> None:
    sim.create_topic("%RETRY%g", queues=1, attributes={"dedup": "strict"})
    position, same = send(sim), send(sim)
    assert [ask(sim, each)[0] for each in (position, same)] == [0, 0]
    path = sim.leader().connect()
    assert [fallback(sim, path, n, 1) for n in (1, 2)] == [0, 0]
    copies(sim, 4)


def test_a_group_that_wants_more_retry_queues_gets_them_and_one_that_wants_fewer_uses_fewer(sim: SimCluster) -> None:
    """A queue beyond those of the topic would hide the copy; one beyond the wanted ones still has its messages."""

    def used(count: int) -> list[int]:
        before = {row.name for row in sim.leader().state.timers.due(1 << 62)}
        for number in range(count):
            assert ask(sim, send(sim, b"%d" % number))[0] == 0
        return sorted(row.queue_id for row in sim.leader().state.timers.due(1 << 62) if row.name not in before)

    def beat() -> None:
        path = sim.leader().connect()
        body = json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}).encode()
        path.ask(encode_frame(34, 1, 0, body=body))
        sim.loop.run_for(1)

    assert used(1) == [0]
    set_group(sim, retry_queue_nums=3)
    assert used(3) == [0, 0, 0], "the topic has one queue until its consumers are told of more"
    beat()
    topic = sim.leader().state.topics["%RETRY%g"]
    assert (topic.read_queues, topic.write_queues, topic.perm) == (3, 3, 6)
    assert used(3) == [0, 1, 2]
    set_group(sim, retry_queue_nums=2)
    beat()
    assert sim.leader().state.topics["%RETRY%g"].queues == 3
    assert set(used(4)) == {0, 1}


EXPONENTIAL = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 20_000, "max": 90_000, "multiplier": 3}}
LISTED = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 7_000, 33_000]}}


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (EXPONENTIAL, [20_000, 60_000, 90_000]),
        (LISTED, [7_000, 33_000, 33_000]),
        ({"type": "EXPONENTIAL"}, [10_000, 30_000, 60_000]),
        ({"type": "CUSTOMIZED"}, [10_000, 30_000, 60_000]),
        ({"next": [5]}, [10_000, 30_000, 60_000]),  # a build before level 13 stored anything
    ],
)
def test_a_retry_policy_says_when_a_message_comes_again(
    sim: SimCluster, policy: dict[str, Any], waits: list[int]
) -> None:
    """The delays are those of nextDelayDuration in RocketMQ's ExponentialRetryPolicy and CustomizedRetryPolicy."""
    set_group(sim, group_retry_policy=json.dumps(policy), retry_max_times=16)
    position = send(sim)
    for times, wait_ms in enumerate(waits, 1):
        assert ask(sim, position)[0] == 0
        (left_ms,) = waits_ms(sim)
        assert 0 <= wait_ms - left_ms < 1_000
        position, _ = copies(sim, times)[-1]
    assert ask(sim, position, delayLevel=5)[0] == 0
    assert 59_000 < waits_ms(sim)[0] <= 60_000, "a consumer that names a level is obeyed"
