"""Transactions on three nodes: a half message is delivered if it is committed, once, and nobody sees it before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cluster.broker.transactions import transaction_end
from cluster.flow.gate import ITSELF, GateRequest
from cluster.retention.disk_space import RESERVE_BYTES_MAX
from raftlog.types import Entry, EntryType
from raftmq_wire.codec import encode_frame
from raftmq_wire.message_format import Message, decode_message, decode_message_id
from raftmq_wire.properties import parse_properties
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.command_table import unpack
from statemachine.delivery.half_messages import EndHalves, Pending
from statemachine.levels import GROUPS_LEVEL
from statemachine.payload import decode
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from tests.support.sim_cluster import SimCluster, SimNode, codes, send_frame
from tests.support.transactions import COMMIT, HALF, ROLLBACK, UNKNOWN, Half, Producer
from tests.support.truth_kit import SECOND

SEED = 14
CHECK = {"transaction.timeout_ms": 2000, "transaction.check_interval_ms": 1000, "transaction.check_max": 3}
PARKED = "TRANS_CHECK_MAX_TIME_TOPIC"
TOPIC = 1


@pytest.fixture
def sim(sim_of: Callable[..., SimCluster]) -> SimCluster:
    return sim_of(**CHECK)


def stored(node: SimNode, topic: str = "T", queue_id: int = 0) -> list[Message]:
    config = node.state.topics.get(topic)
    if config is None:
        return []
    items = node.state.fetch(config.id, queue_id, 0, 1000)
    return [decode_message(node.log.read_at(item.position, item.size))[0] for item in items]


def pending(sim: SimCluster) -> int:
    return sim.leader().state.halves.pending.count


def wait_for_end(sim: SimCluster) -> None:
    sim.loop.run_until(lambda: pending(sim) == 0, 20, "no transaction is open")
    sim.settle()
    sim.check_equal()


def by_role(sim: SimCluster, leads: bool) -> SimNode:
    return sim.leader() if leads else sim.followers()[0]


# --- a half message ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leads", [True, False])
def test_a_half_message_is_in_no_queue_and_its_committed_copy_is(sim: SimCluster, leads: bool) -> None:
    producer = Producer(by_role(sim, leads))
    half = producer.send(sim, "K1", b"body", queue_id=1, properties="TAGS\x01red\x02KEYS\x01one\x02colour\x01blue\x02")
    assert (half.offset, half.queue_id) == (half.position, 1)
    assert stored(sim.leader(), queue_id=1) == []
    row = sim.leader().state.halves.get(half.position)
    assert row is not None
    kept = decode_message(sim.leader().log.read_at(row.position, row.size))[0]
    assert (kept.topic, kept.queue_id, kept.queue_offset) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, half.offset)
    assert kept.sys_flag & 0xC == 0
    properties = parse_properties(kept.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], properties["__transactionId__"]) == ("T", "1", "K1")

    producer.end(half, COMMIT)
    wait_for_end(sim)
    (message,) = stored(sim.leader(), queue_id=1)
    assert (message.topic, message.body, message.queue_id, message.queue_offset) == ("T", b"body", 1, 0)
    assert (message.sys_flag & 0xC, message.prepared_position) == (0x8, half.position)
    assert (message.born_ms, message.born_host) == (kept.born_ms, kept.born_host)
    assert parse_properties(message.properties)["TRAN_MSG"] == "true"
    assert parse_properties(message.properties)["colour"] == "blue"
    state = sim.leader().state
    bucket = state.message_index.bucket_below((1 << 64) - 1)
    assert bucket is not None
    for key in (b"K1", b"one"):
        found = [position for batch in state.message_index.candidates(bucket, TOPIC, key) for position in batch]
        assert found == [message.position], "keys lead to the copy alone"


@pytest.mark.parametrize(("wish", "left"), [(COMMIT, [b"m"]), (ROLLBACK, []), (UNKNOWN, [])])
def test_one_that_was_answered_early_ends_once_it_is_decided(sim: SimCluster, wish: int, left: list[bytes]) -> None:
    """Until then it is no half message for any node, and none that has ended."""
    producer, followers = Producer(sim.leader()), sim.followers()
    for node in followers:
        node.append.hold()
    half = producer.send(sim, "K1", properties="ACK_LEVEL\x01leader\x02")
    opaque = producer.end(half, wish, oneway=False)
    sim.loop.run_for(0.3)
    assert opaque not in producer.replies
    for node in followers:
        node.append.release()
    sim.loop.run_until(lambda: opaque in producer.replies, 20, "an answer")
    assert codes(producer, opaque) == [0]
    assert pending(sim) == (wish == UNKNOWN)
    assert [message.body for message in stored(sim.leader(), queue_id=half.queue_id)] == left


@pytest.mark.parametrize("leads", [True, False])
def test_a_rollback_leaves_nothing(sim: SimCluster, leads: bool) -> None:
    producer = Producer(by_role(sim, leads))
    half = producer.send(sim, "K1")
    producer.end(half, ROLLBACK)
    wait_for_end(sim)
    assert stored(sim.leader()) == []
    producer.end(half, COMMIT)
    sim.loop.run_for(2.0)
    assert stored(sim.leader()) == [], "it has ended"


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(("wish", "end"), [(COMMIT, "committed"), (ROLLBACK, "rolledBack")])
def test_the_answer_says_how_it_ended(sim: SimCluster, leads: bool, wish: int, end: str) -> None:
    """The answer to two who ask at once is the outcome of the first. Later the answer is that it is over."""
    producer, other = Producer(by_role(sim, leads)), Producer(by_role(sim, leads), "p2")
    half = producer.send(sim, "K1")
    ends = []
    opposite = COMMIT + ROLLBACK - wish
    for by in ([(producer, UNKNOWN)], [(producer, wish), (other, opposite)], [(producer, COMMIT)]):
        asked = [(each, each.end(half, its, oneway=False)) for each, its in by]
        sim.loop.run_until(lambda asked=asked: all(n in each.replies for each, n in asked), 20)  # type: ignore[misc]
        ends.append([json.loads(each.replies[n][0][2])["raftmqEnd"] for each, n in asked])
    assert ends == [["open"], [end, end], ["earlier"]]


def test_a_copy_without_room_waits_and_is_refused_in_the_end(sim: SimCluster) -> None:
    producer, leader = Producer(sim.leader()), sim.leader()
    gate = leader.proposals.gate
    halves = [producer.send(sim, key) for key in ("K1", "K2")]
    for half, wait_s, refused in zip(halves, (1.0, 20.0), ({}, {"busy": 1}), strict=True):
        full = gate.hold(gate.holder(""), leader.config.limits.node_inflight_bytes_max, ITSELF, GateRequest.OWN)
        asked = producer.end(half, COMMIT, oneway=False)
        sim.loop.run_for(wait_s)
        assert (asked in producer.replies) is bool(refused)
        full.ended()
        sim.loop.run_until(lambda asked=asked: asked in producer.replies, 20)  # type: ignore[misc]
        assert leader.refused == refused
    code, remark, _ = producer.replies[asked][0]
    assert (code, "node_inflight_bytes_max" in remark) == (14, True)


def test_the_copy_and_the_end_are_one_entry(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1")
    entries: list[Entry] = []
    state = sim.leader().state
    apply = state.apply
    state.apply = lambda run: entries.extend(run) or apply(run)  # type: ignore[method-assign, assignment]
    producer.end(half, COMMIT)
    wait_for_end(sim)
    (message,) = stored(sim.leader())
    (entry,) = [entry for entry in entries if entry.position <= message.position < entry.end_position]
    assert entry.type == EntryType.MESSAGES
    assert unpack(decode(bytes(entry.payload)).effects) == [EndHalves([half.position])]


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_the_first_to_come_wins(sim: SimCluster, first: int, second: int) -> None:
    """Both are on their way at once, from two connections at two nodes."""
    producer, other = Producer(sim.leader()), Producer(sim.leader(), "p2")
    half = producer.send(sim, "K1")
    producer.end(half, first)
    other.end(half, second)
    wait_for_end(sim)
    assert len(stored(sim.leader())) == (first == COMMIT)


def test_it_comes_twice_late_and_at_another_node(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1")
    others = [Producer(node, f"p{node.node_id}") for node in sim.running]
    for _ in range(2):
        for each in others:
            each.end(half, COMMIT)
    wait_for_end(sim)
    for each in others:
        each.end(half, ROLLBACK)
    sim.loop.run_for(2.0)
    assert len(stored(sim.leader())) == 1


def test_many_at_once_share_entries_with_other_sends(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    halves = [producer.send(sim, f"K{at}", b"%d" % at, queue_id=at % 2) for at in range(60)]
    for at, half in enumerate(halves):
        producer.end(half, COMMIT if at % 3 else ROLLBACK)
        producer.ask(send_frame(at + 1, "T", b"plain", key=f"P{at}"))
    wait_for_end(sim)
    bodies = sim.leader().bodies("T")
    assert sorted(body for body in bodies if body != b"plain") == sorted(b"%d" % at for at in range(60) if at % 3)
    assert bodies.count(b"plain") == 60


def test_the_longest_key_names_its_half_message(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K" * 15_000)  # it stands twice: as __transactionId__ too
    other = half._replace(key="k" * 15_000)
    code, remark = producer.ask_to_end(sim, other, COMMIT)
    assert (code, len(remark) < 1000) == (1, True)
    assert producer.ask_to_end(sim, half, COMMIT)[0] == 0
    wait_for_end(sim)
    assert len(stored(sim.leader())) == 1


def test_a_repeated_send_is_one_half_message(sim: SimCluster) -> None:
    path = sim.leader().connect()
    for opaque in (1, 2):
        path.ask(send_frame(opaque, "T", b"m", key="K", properties=HALF, pid=b"\x01" * 16, seq=1))
        sim.loop.run_until(lambda opaque=opaque: opaque in path.replies, 10)  # type: ignore[misc]
    assert path.replies[1] == path.replies[2], "the same position and the same half offset"
    assert pending(sim) == 1


def test_delays_of_a_half_message_are_dropped(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1", properties="DELAY\x013\x02TIMER_DELAY_SEC\x0160\x02")
    producer.end(half, COMMIT)
    wait_for_end(sim)
    (message,) = stored(sim.leader())
    assert not {"DELAY", "TIMER_DELAY_SEC"} & parse_properties(message.properties).keys()


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ("TRAN_MSG\x01true\x02", "PGROUP"),
        (HALF + "a\x01" + "b" * 32_630 + "\x02", "limits.properties_bytes_max"),
        (HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x01 30\x02", "CHECK_IMMUNITY_TIME_IN_SECONDS= 30: not a number"),
    ],
)
def test_half_messages_that_are_refused(sim: SimCluster, properties: str, words: str) -> None:
    path = sim.leader().connect()
    path.ask(send_frame(1, "T", b"m", key="K", properties=properties))
    sim.loop.run_until(lambda: 1 in path.replies, 10)
    code, remark, _ = path.replies[1][0]
    assert (code, words in remark) == (13, True), remark
    assert pending(sim) == 0


@pytest.mark.parametrize("value", ["false", "", "no"])
def test_a_message_that_is_no_half_message(sim: SimCluster, value: str) -> None:
    path = sim.leader().connect()
    path.ask(send_frame(1, "T", b"m", key="K", properties=f"TRAN_MSG\x01{value}\x02"))
    sim.loop.run_until(lambda: 1 in path.replies, 10)
    assert codes(path, 1) == [0]
    assert len(stored(sim.leader())) == 1


def view(sim: SimCluster, node: SimNode, position: int) -> int:
    """Code of the answer to VIEW_MESSAGE_BY_ID (33)."""
    path = node.connect()
    path.ask(encode_frame(33, 1, 0, ext={"offset": str(position)}))
    sim.loop.run_until(lambda: 1 in path.replies, 10)
    return codes(path, 1)[0]


def test_it_can_be_looked_at_by_its_id_while_it_is_open(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1")
    sim.settle()
    assert [view(sim, node, half.position) for node in sim.running] == [0, 0, 0]
    producer.end(half, ROLLBACK)
    wait_for_end(sim)
    assert view(sim, sim.leader(), half.position) == 1


# --- requests that do not match ------------------------------------------------------------------------------------


def mismatches(half: Half, plain: int) -> list[tuple[dict[str, Any], int, str]]:
    return [
        ({"commitLogOffset": half.position + 1}, 0, ""),
        ({"commitLogOffset": plain, "tranStateTableOffset": plain}, 0, ""),
        ({"commitLogOffset": 1 << 40}, 0, ""),
        ({"tranStateTableOffset": half.offset + 1}, 1, "half offset"),
        ({"producerGroup": "other"}, 1, "producer group PG, not other"),
        ({"msgId": "K2"}, 1, "unique key K1, not K2"),
        ({"commitOrRollback": 4}, 29, "commitOrRollback"),
        ({"commitOrRollback": "x"}, 29, "as an integer"),
        ({"commitOrRollback": None}, 29, "commitOrRollback"),
        ({"commitLogOffset": -1}, 29, "not negative"),
        ({"commitLogOffset": 1 << 63}, 29, "64 bits"),
        ({"tranStateTableOffset": -5}, 29, "not negative"),
        ({"producerGroup": None}, 29, "producerGroup"),
        ({"producerGroup": "g" * 10_000}, 29, "characters"),
        ({"msgId": None}, 29, "msgId"),
    ]


@pytest.mark.parametrize("leads", [True, False])
def test_what_does_not_match_ends_nothing(sim: SimCluster, leads: bool) -> None:
    producer = Producer(by_role(sim, leads))
    producer.ask(send_frame(5, "T", b"plain", key="P"))
    sim.loop.run_until(lambda: 5 in producer.replies, 10)
    (plain,) = stored(sim.leader())
    half = producer.send(sim, "K1")
    for ext, code, words in mismatches(half, plain.position):
        got, remark = producer.ask_to_end(sim, half, COMMIT, **ext)
        assert (got, words in remark) == (code, True), (ext, got, remark)
    assert (pending(sim), len(stored(sim.leader()))) == (1, 1)
    assert producer.ask_to_end(sim, half, UNKNOWN) == (0, "")
    assert pending(sim) == 1
    assert producer.ask_to_end(sim, half, COMMIT) == (0, "")
    assert [message.body for message in stored(sim.leader())] == [b"plain", b"m"]


# --- the leader changes --------------------------------------------------------------------------------------------


def test_a_oneway_end_waits_for_the_next_leader(sim_of: Callable[..., SimCluster]) -> None:
    """No check of the producer is due: only the node that kept the request can have ended them."""
    sim = sim_of(**{"transaction.timeout_ms": 86_400_000, "send.deadline_ms": 20_000})
    old, holder = sim.leader(), sim.followers()[0]
    producer = Producer(holder)
    halves = [producer.send(sim, f"K{at}", b"%d" % at) for at in range(4)]
    old.kill(power=False)
    for half in halves:
        producer.end(half, COMMIT)
    producer.close()
    sim.leader(besides=old)
    sim.loop.run_until(lambda: pending(sim) == 0, 20, "the commits have arrived")
    old.start()
    wait_for_end(sim)
    assert sorted(sim.leader().bodies("T")) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("wish", [COMMIT, ROLLBACK])
def test_an_end_in_flight_when_the_leader_is_deposed(sim_of: Callable[..., SimCluster], wish: int) -> None:
    sim = sim_of(**{"transaction.timeout_ms": 86_400_000, "send.deadline_ms": 20_000})
    old = sim.leader()
    producer = Producer(old)
    halves = [producer.send(sim, f"K{at}", b"%d" % at) for at in range(6)]
    sim.isolate(old)
    for half in halves:
        producer.end(half, wish)
    sim.leader(besides=old)
    sim.mend()
    wait_for_end(sim)
    assert sorted(sim.leader().bodies("T")) == ([b"%d" % at for at in range(6)] if wish == COMMIT else [])


def test_commits_repeated_at_each_leader_store_one_copy(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    halves = [producer.send(sim, f"K{at}", b"%d" % at) for at in range(5)]
    for _ in range(3):
        old = sim.leader()
        for node in sim.running:
            for half in halves:
                Producer(node, f"p{node.node_id}").end(half, COMMIT)
        sim.loop.run_for(sim.rng.random() * 0.01)
        old.kill(power=False)
        sim.leader(besides=old)
        sim.loop.run_for(1.0)
        old.start()
        sim.settle()
    wait_for_end(sim)
    assert sorted(sim.leader().bodies("T")) == [b"%d" % at for at in range(5)]


# --- check-back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leads", [True, False])
def test_a_producer_is_asked_on_whichever_node_it_is_connected(sim: SimCluster, leads: bool) -> None:
    first = Producer(by_role(sim, not leads))
    half = first.send(sim, "K1", b"body", queue_id=1)
    first.close()
    another = Producer(by_role(sim, leads), "p2")
    Producer(by_role(sim, leads), "p3", group="other")
    sim.loop.run_until(lambda: another.checks, 10, "a check")
    ext, message = another.checks[0]
    assert (ext["topic"], ext["msgId"], ext["transactionId"], ext["bname"]) == ("T", "K1", "K1", "raftmq")
    assert (int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])) == (half.offset, half.position)
    assert decode_message_id(ext["offsetMsgId"])[1] == half.position
    assert (message.topic, message.queue_id, message.body) == ("T", 1, b"body")
    properties = parse_properties(message.properties)
    assert (properties["PGROUP"], properties["UNIQ_KEY"]) == ("PG", "K1")
    another.end(half, COMMIT, fromTransactionCheck="true")
    wait_for_end(sim)
    assert [message.body for message in stored(sim.leader(), queue_id=1)] == [b"body"]
    count = len(another.checks)
    sim.loop.run_for(5.0)
    assert len(another.checks) == count, "nobody is asked about what has ended"


def test_checks_end_and_the_message_is_parked(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1", b"body")
    wait_for_end(sim)
    assert len(producer.checks) == 3
    assert stored(sim.leader()) == []
    (parked,) = stored(sim.leader(), PARKED)
    assert (parked.body, parked.sys_flag & 0xC) == (b"body", 0)
    assert parse_properties(parked.properties)["REAL_TOPIC"] == "T"
    producer.end(half, COMMIT)
    sim.loop.run_for(2.0)
    assert (stored(sim.leader()), len(stored(sim.leader(), PARKED))) == ([], 1)


def test_what_cannot_be_parked_keeps_nobody_else_from_being_asked(
    sim_of: Callable[..., SimCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no more topics, so the one for them cannot be made; they stay the first that are due."""
    monkeypatch.setattr(transaction_end, "BATCH_MAX", 4)
    sim = sim_of(**CHECK, **{"limits.topics_max": 1})
    producer = Producer(sim.leader())
    for number in range(9):
        producer.send(sim, f"K{number}")
    sim.loop.run_for(10)
    assert (pending(sim), len(producer.checks)) == (9, 27)
    producer.checks.clear()
    late = producer.send(sim, "K-late")
    sim.loop.run_until(lambda: producer.checks, 20, "the producer is asked")
    assert {fields["msgId"] for fields, _ in producer.checks} == {"K-late"}
    producer.end(late, COMMIT)
    sim.loop.run_for(1)
    assert pending(sim) == 9


def test_a_message_is_parked_in_its_group_of_brokers_though_the_topic_is_in_another_one(sim: SimCluster) -> None:
    elsewhere = CreateTopic({"name": PARKED, "perm": 6, "place": [[2, 1, 1]]}, False)
    results = sim.propose(sim.leader(), Finalize(GROUPS_LEVEL), SECOND, elsewhere)
    sim.loop.run_until(lambda: results, 10, "the topic is there")
    producer = Producer(sim.leader())
    producer.send(sim, "K1", b"body")
    wait_for_end(sim)
    (parked,) = stored(sim.leader(), PARKED)
    assert parked.body == b"body"
    assert sim.leader().state.topics[PARKED].queues_of_groups == {1: (1, 1), 2: (1, 1)}


def test_no_check_is_counted_while_nothing_can_be_committed(sim_of: Callable[..., SimCluster]) -> None:
    sim = sim_of(**CHECK)
    leader = sim.leader()
    producer = Producer(leader)
    half = producer.send(sim, "K1")
    leader.fs.fill(RESERVE_BYTES_MAX // 2)
    sim.loop.run_until(lambda: leader.proposals.refusing, 5, "the disk is full")
    producer.end(half, COMMIT)
    sim.loop.run_for(10.0)
    row = leader.state.halves.get(half.position)
    assert row is not None
    assert (row.checks, producer.checks) == (0, [])
    leader.fs.fill(1 << 40)
    sim.loop.run_until(lambda: producer.checks, 10, "a check")
    producer.end(half, COMMIT)
    wait_for_end(sim)
    assert len(stored(sim.leader())) == 1


def test_checks_count_without_a_producer_and_across_leaders(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    producer.send(sim, "K1")
    producer.close()
    old = sim.leader()
    sim.loop.run_until(lambda: next(iter(old.state.halves.due(1 << 62, 1))).checks == 2, 10, "two checks")
    old.kill(power=False)
    leader = sim.leader(besides=old)
    last = Producer(leader, "p2")
    sim.loop.run_until(lambda: stored(leader, PARKED), 20, "parked")
    assert len(last.checks) <= 1
    old.start()
    wait_for_end(sim)
    assert len(stored(sim.leader(), PARKED)) == 1


def test_the_message_says_when_it_is_checked_first(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    times = {}
    asked = {"K1": "0", "K2": "7", "K3": "-1", "K4": "0099999", "K5": "86400", "K6": "86401", "K7": str((1 << 63) - 1)}
    for key, value in (asked | {"K8": ""}).items():
        half = producer.send(sim, key, properties=f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{value}\x02")
        row = sim.leader().state.halves.get(half.position)
        assert row is not None
        stored_ms = decode_message(sim.leader().log.read_at(row.position, row.size))[0].store_ms
        times[key] = row.check_ms - stored_ms
    day = 86_400_000
    assert times == {"K1": 0, "K2": 7000, "K3": 0, "K4": day, "K5": day, "K6": day, "K7": day, "K8": 2000}


# --- topics and retention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("wish", [COMMIT, ROLLBACK, None])
def test_a_deleted_topic_drops_its_half_messages(sim: SimCluster, wish: int | None, again: bool) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1")
    results = sim.propose(sim.leader(), DeleteTopic("T"))
    sim.loop.run_until(lambda: results, 10, "deleted")
    if again:
        sim.create_topic("T")
    if wish is not None:
        producer.end(half, wish)
    wait_for_end(sim)
    assert stored(sim.leader()) == [], "a topic made again inherits nothing"
    assert stored(sim.leader(), PARKED) == []


def test_a_queue_that_is_gone_gives_way_to_another(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1", queue_id=1)
    sim.create_topic("T", queues=1)
    producer.end(half, COMMIT)
    wait_for_end(sim)
    assert [message.body for message in stored(sim.leader())] == [b"m"]


def test_an_open_transaction_pins_the_log(sim: SimCluster) -> None:
    producer = Producer(sim.leader())
    half = producer.send(sim, "K1")
    assert sim.leader().state.lowest_pinned_position() == half.position
    assert sim.leader().state.halves.pending == Pending(1, sim.leader().state.halves.pending.bytes)
    producer.end(half, ROLLBACK)
    wait_for_end(sim)
    assert sim.leader().state.lowest_pinned_position() is None
