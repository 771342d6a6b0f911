"""Queries of single messages: by key, by UNIQ_KEY, by position; what is not there, not readable, not wanted."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.broker.reads.message_lookup import BYTES_MAX, CANDIDATES_MAX
from raftlog.errors import CorruptLogError, OutOfRangeError, RaftLogError
from raftmq_wire.message_format import PROPERTIES_BYTES_MAX, decode_messages
from statemachine import message_index
from statemachine.removal_slices import DeleteTopic

LONG_MAX = (1 << 63) - 1
STORED, SHARE = 96, 100


def by_key(node: Any, key: str, topic: str = "T", **fields: Any) -> Any:
    ext = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": LONG_MAX}
    request = node.ask(12, **(ext | fields))
    node.advance(0)
    return request.answer


def by_position(node: Any, position: Any) -> Any:
    return node.ask(33, topic="T", offset=position).answer


def bodies(answer: Any) -> list[bytes]:
    assert answer.code == 0, answer
    return [message.body for message in decode_messages(answer.body)]


def position_of(stored: bytes) -> int:
    return next(decode_messages(stored)).position


def test_d9_messages_are_found_by_each_of_their_keys(node: Any) -> None:
    node.create_topic("T")
    node.store("T", b"1", keys="order-1 red", unique="U1")
    node.store("T", b"2", keys="order-2 red", unique="U2", queue_id=3)
    assert bodies(by_key(node, "order-1")) == [b"1"]
    assert bodies(by_key(node, "red")) == [b"2", b"1"]
    assert bodies(by_key(node, "U2")) == [b"2"]
    assert bodies(by_key(node, "red", maxNum=1)) == [b"2"]
    assert by_key(node, "order").code == 22
    assert by_key(node, "order-1 red").code == 22


def test_the_longest_key_is_found(node: Any) -> None:
    """A key may be as long as properties can be."""
    long = "k" * (PROPERTIES_BYTES_MAX - 100)
    node.create_topic("T")
    node.store("T", b"1", keys=f"short {long}")
    node.store("T", b"2", unique=long)
    assert bodies(by_key(node, long)) == [b"2", b"1"]
    assert bodies(by_key(node, long, _UNIQUE_KEY_QUERY="true")) == [b"2"]
    none = by_key(node, "K" * PROPERTIES_BYTES_MAX)
    assert (none.code, len(none.remark) < 1000) == (22, True)
    assert by_key(node, "k" * (PROPERTIES_BYTES_MAX + 1)).code == 29


@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY"])
def test_what_an_earlier_build_indexed_by_the_first_value_is_found(node: Any, name: str) -> None:
    """A property that stands twice has its last value now; the index of what is stored stays as it is."""
    node.create_topic("T")
    twice = {name: f"old\x02{name}\x01new\x02{name}\x01"}
    node.store("T", b"1", indexed="old", user=twice)
    node.store("T", b"2", indexed="new", user=twice)
    assert bodies(by_key(node, "old")) == [b"1"]
    assert bodies(by_key(node, "new")) == [b"2"]


def test_the_answer_is_what_a_pull_would_give(node: Any) -> None:
    node.create_topic("T")
    (stored,) = node.store("T", b"body", keys="k")
    answer = by_key(node, "k")
    assert answer.body == stored
    mark = node.state.applied_mark
    assert answer.ext == {
        "indexLastUpdateTimestamp": str(mark.timestamp_ms),
        "indexLastUpdatePhyoffset": str(mark.end_position),
    }


def test_a_query_for_a_unique_key_takes_no_other_key(node: Any) -> None:
    node.create_topic("T")
    node.store("T", b"named", unique="X")
    node.store("T", b"worded", unique="Y", keys="X")
    assert bodies(by_key(node, "X")) == [b"worded", b"named"]
    assert bodies(by_key(node, "X", _UNIQUE_KEY_QUERY="true", maxNum=0)) == [b"named"]


def test_keys_of_another_topic_are_not_found(node: Any) -> None:
    node.create_topic("T")
    node.create_topic("U")
    node.store("U", b"1", keys="k")
    assert by_key(node, "k").code == 22
    assert bodies(by_key(node, "k", topic="U")) == [b"1"]


def test_a_topic_made_anew_does_not_show_the_old_ones_messages(node: Any) -> None:
    node.create_topic("T")
    (old,) = node.store("T", b"old", keys="k")
    node.command(DeleteTopic("T"))
    assert by_key(node, "k").code == 17
    node.create_topic("T")
    node.store("T", b"new", keys="k")
    assert bodies(by_key(node, "k")) == [b"new"]
    assert by_position(node, position_of(old)).code == 1


def test_times_are_inclusive_and_found_within_one_bucket(node: Any) -> None:
    node.create_topic("T")
    times = []
    for n in range(9):
        times.append(node.now_ms)
        node.store("T", b"%d" % n, keys="k")
        node.advance(1000)
    assert bodies(by_key(node, "k", beginTimestamp=times[3], endTimestamp=times[5])) == [b"5", b"4", b"3"]
    assert bodies(by_key(node, "k", beginTimestamp=times[7] + 1)) == [b"8"]
    assert bodies(by_key(node, "k", endTimestamp=times[0])) == [b"0"]
    assert by_key(node, "k", beginTimestamp=times[8] + 1).code == 22
    assert by_key(node, "k", beginTimestamp=times[5], endTimestamp=times[3]).code == 22


@pytest.mark.parametrize("bucket_span", [1 << 32, 2000])
def test_a_time_is_found_without_reading_all_messages_with_the_key(
    node: Any, monkeypatch: pytest.MonkeyPatch, bucket_span: int
) -> None:
    """A search halves within a bucket, and passes over buckets that are too old or too new."""
    monkeypatch.setattr(message_index, "BUCKET_SPAN", bucket_span)
    node.create_topic("T")
    times = []
    for n in range(300):
        times.append(node.now_ms)
        node.store("T", b"%d" % n, keys="k")
        node.advance(1000)
    for wanted in (0, 150, 299):
        node.reads.clear()
        assert bodies(by_key(node, "k", beginTimestamp=times[wanted], endTimestamp=times[wanted])) == [b"%d" % wanted]
        assert len(node.reads) < 50


def test_another_key_of_the_same_hash_is_not_sent(node: Any) -> None:
    node.create_topic("T")
    node.store("T", b"wanted", keys="k")
    for n in range(5):
        node.store("T", b"%d" % n, keys="other", indexed="k")
    assert bodies(by_key(node, "k")) == [b"wanted"]
    node.store("T", *[b"x"] * CANDIDATES_MAX, keys="other", indexed="k")
    answer = by_key(node, "k")
    assert (answer.code, "hash" in answer.remark) == (1, True)


def test_a_long_search_gives_the_loop_its_turns(node_with: Any) -> None:
    node = node_with(SHARE)
    node.create_topic("T")
    for n in range(STORED):
        node.store("T", b"%d" % n, keys="other", indexed="k")
    node.store("T", b"wanted", keys="k", indexed="k2")
    request = node.ask(12, topic="T", key="k", maxNum=1, beginTimestamp=0, endTimestamp=LONG_MAX)
    asked_ms, turns = node.now_ms, 0
    while not request.replies:
        node.next_turn()
        turns += 1
    assert node.now_ms == asked_ms, "no turn is waited for"
    assert turns >= 3
    assert request.answer.code == 22


def test_nobody_is_searched_for_whose_connection_is_gone(node_with: Any, connect: Any) -> None:
    node = node_with(SHARE)
    node.create_topic("T")
    for n in range(STORED):
        node.store("T", b"%d" % n, keys="other", indexed="k")
    connection = connect()
    request = node.ask(12, connection=connection, topic="T", key="k", maxNum=1, beginTimestamp=0, endTimestamp=LONG_MAX)
    connection.close()
    node.advance(0)
    assert node.timers == 0
    assert not request.replies


def test_a_message_whose_bytes_have_changed_is_never_sent(node: Any) -> None:
    node.create_topic("T")
    (old,) = node.store("T", b"sound", keys="k")
    (rotten,) = node.store("T", b"rotten", keys="k")
    node.rotten = {position_of(rotten) + 40}
    assert bodies(by_key(node, "k")) == [b"sound"]
    assert by_position(node, position_of(rotten)).code == 1
    node.rotten.add(position_of(old) + 90)
    answer = by_key(node, "k")
    assert answer.code == 1
    assert "node 2" in answer.remark


def test_a_query_for_a_tag_is_refused(node: Any) -> None:
    """mqadmin 5.5 `queryMsgByKey -p T`: a search among the keys would find nothing, or what has such a key."""
    node.create_topic("T")
    node.store("T", b"x", keys="red")
    answer = by_key(node, "red", indexType="T")
    assert (answer.code, "tags are not indexed" in (answer.remark or "")) == (29, True)
    assert bodies(by_key(node, "red", indexType="K")) == [b"x"]


def test_by_position(node: Any) -> None:
    node.create_topic("T")
    first, second = node.store("T", b"1", b"2")
    assert by_position(node, position_of(second)).body == second
    assert by_position(node, position_of(first)).body == first
    end = node.state.applied_mark.end_position
    for position in (-1, 0, 1, position_of(first) + 1, position_of(second) - 1, end - 1, end, end + 10**6, LONG_MAX):
        answer = by_position(node, position)
        assert answer.code == 1, position
        assert str(position) in answer.remark


@pytest.mark.parametrize("error", [OutOfRangeError, CorruptLogError])
def test_what_the_log_no_longer_has_is_no_message(node: Any, error: type[RaftLogError]) -> None:
    node.create_topic("T")
    (stored,) = node.store("T", b"1", keys="k")
    node.read_error = error("as the test wants")
    answer = by_position(node, position_of(stored))
    assert (answer.code, "as the test wants" in answer.remark) == (1, True)
    answer = by_key(node, "k")
    assert (answer.code, "cannot be read intact" in answer.remark) == (1, True)
    assert by_key(node, "k", endTimestamp=1).code in (1, 22)


def test_bytes_inside_a_body_are_no_message(node: Any) -> None:
    """A body may hold a whole stored message: no queue names that position."""
    node.create_topic("T")
    (inner,) = node.store("T", b"1", keys="k")
    (outer,) = node.store("T", inner)
    at = position_of(outer) + outer.index(inner)
    assert by_position(node, at).code == 1


@pytest.mark.parametrize("length", [0, 1 << 20])
def test_bytes_that_only_claim_to_be_a_long_message_are_not_read(node: Any, length: int) -> None:
    """A body may begin like a message of 32 MiB, and any user may ask for its position, again and again."""
    node.create_topic("T")
    (inner,) = node.store("T", b"x" * length, keys="k")
    forged = bytearray(inner[:200])
    forged[:4] = (1 << 20).to_bytes(4, "big")
    (outer,) = node.store("T", bytes(forged))
    node.store("T", b"x" * (1 << 20))
    at = position_of(outer) + outer.index(forged)
    node.reads.clear()
    assert by_position(node, at).code == 1
    assert sum(size for _, size in node.reads) < 4096
    node.reads.clear()
    assert by_position(node, position_of(outer)).body == outer
    assert sum(size for _, size in node.reads) < 4096 + len(outer)


def test_a_node_that_lags_does_not_say_there_is_none(node: Any) -> None:
    node.create_topic("T")
    (stored,) = node.store("T", b"1", keys="k")
    node.confirms = False
    assert bodies(by_key(node, "k")) == [b"1"]
    assert by_position(node, position_of(stored)).code == 0
    for answer in (by_key(node, "none"), by_key(node, "k", topic="nowhere"), by_position(node, 1 << 40)):
        assert answer.code == 14
        assert "no leader" in answer.remark


@pytest.mark.parametrize("missing", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
def test_a_field_that_is_missing_is_named(node: Any, missing: str) -> None:
    node.create_topic("T")
    ext = {"topic": "T", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 9}
    answer = node.ask(12, **(ext | {missing: None})).answer
    assert answer.code == 29
    assert missing in answer.remark


def test_a_number_that_is_none_is_named(node: Any) -> None:
    assert by_position(node, "x").code == 29
    assert by_key(node, "k", maxNum=0).code == 29


def test_an_index_that_cannot_be_read_is_told(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create_topic("T")
    (stored,) = node.store("T", b"1", keys="k")

    def broken(*_: object) -> None:
        raise OSError("as the test wants")

    monkeypatch.setattr(node.state, "fetch", broken)
    for answer in (by_key(node, "k"), by_position(node, position_of(stored))):
        assert (answer.code, "as the test wants" in answer.remark) == (1, True)


def test_an_answer_that_lacks_messages_says_so(node: Any) -> None:
    """Cut by number, cut by bytes, or with a message that cannot be read."""
    node.create_topic("T")
    stored = [node.store("T", b"x" * 100, keys="k")[0] for _ in range(5)]
    node.store("T", b"one", keys="alone")

    def told(key: str = "k", **fields: Any) -> tuple[int, str | None]:
        answer = by_key(node, key, **fields)
        return len(bodies(answer)), answer.ext.get("raftmqMore")

    assert (told(), told("alone", maxNum=1)) == ((5, None), (1, None))
    assert (told(maxNum=5), told(maxNum=4)) == ((5, None), (4, "true"))
    for _ in range(5):
        node.store("T", bytes(BYTES_MAX * 2 // 5), keys="large")
    assert told("large") == (3, "true")
    node.rotten.add(position_of(stored[0]))
    assert told() == (4, "true")
