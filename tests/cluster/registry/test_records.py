"""The registry's records only grow: order and repetition change nothing, and garbage is refused by value."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.group_map import Epoch, GroupMember, GroupRecord, rank
from cluster.registry.records import (
    OPERATION_BYTES_MAX,
    TOPICS_MAX,
    Records,
    TopicPlace,
    View,
    beat_operation,
    groups_operation,
    topics_operation,
)
from cluster.runtime.peer_frames import WireError
from tests.support.rows import each_row

CLUSTER = bytes(range(16))
OTHER = bytes(16)

epochs = st.builds(Epoch, st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))
members = st.sampled_from(["a", "b"]).map(lambda host: [GroupMember(1, host, 1, "", {"broker": f"{host}:2"})])
groups = st.builds(GroupRecord, st.integers(1, 3), st.sampled_from(["x", "y"]), epochs, st.just(1), members)
places = st.builds(TopicPlace, st.integers(0, 3), st.sets(st.integers(1, 4), min_size=1).map(sorted).map(tuple))
operations = st.one_of(
    st.lists(groups, max_size=2, unique_by=lambda record: record.group).map(lambda r: groups_operation(CLUSTER, r)),
    st.dictionaries(st.sampled_from("abc"), places, max_size=2).map(lambda p: topics_operation(CLUSTER, p)),
    st.builds(beat_operation, st.just(CLUSTER), st.integers(1, 3), st.integers(0, 5)),
)


def applied(*each: bytes, topics_max: int = TOPICS_MAX) -> Records:
    records = Records(CLUSTER, topics_max)
    for operation in each:
        assert records.apply(operation)[0] == ""
    return records


def shrank(before: View, after: View) -> bool:
    """True if anything of `before` is gone, or has a lower rank."""
    return (
        any(number not in after.groups or rank(after.groups[number]) < rank(r) for number, r in before.groups.items())
        or any(name not in after.topics or after.topics[name] < place for name, place in before.topics.items())
        or any(after.beats.get(node, -1) < number for node, number in before.beats.items())
    )


@given(st.lists(operations, max_size=8), st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(each: list[bytes], rng: object) -> None:
    again = [*each, *each[::2]]
    rng.shuffle(again)  # type: ignore[attr-defined]
    assert applied(*again).dump() == applied(*each).dump()


@given(st.lists(operations, max_size=8))
def test_nothing_shrinks_and_only_news_changes_anything(each: list[bytes]) -> None:
    records = Records(CLUSTER)
    for operation in each:
        before, known = records.view, records.known(operation)
        answer = records.apply(operation)
        assert not shrank(before, records.view)
        assert known == (None if records.view != before else answer)
        assert records.known(operation) == answer


@given(st.lists(operations, max_size=6), st.lists(operations, max_size=6))
def test_a_merged_copy_is_as_if_all_operations_had_come(one: list[bytes], other: list[bytes]) -> None:
    """A dump put back into another replica, however old, takes nothing away."""
    mine, theirs = applied(*one), applied(*other)
    before = mine.view
    mine.merge(theirs.dump())
    assert not shrank(before, mine.view)
    assert mine.dump() == applied(*one, *other).dump()


@given(st.lists(operations, min_size=1, max_size=4), st.binary(max_size=60), st.integers(0, 200))
def test_garbage_is_refused_by_value(each: list[bytes], garbage: bytes, at: int) -> None:
    """No bytes raise, and those that are refused change nothing."""
    records = applied(*each[:-1])
    spoiled = each[-1][: at % len(each[-1])] + garbage
    for bytes_in in (garbage, spoiled):
        before = records.view
        error, value = records.apply(bytes_in)
        assert (error == "") == (value != b"")
        assert not error or records.view is before


def deep(levels: int) -> bytes:
    return b"\x91" * levels


@each_row(
    ("operation", "why"),
    [
        (b"", "malformed"),
        (deep(100_000)[:OPERATION_BYTES_MAX], "malformed"),
        (bytes(OPERATION_BYTES_MAX + 1), "bytes"),
        (beat_operation(OTHER, 1, 1), "another cluster"),
        (msgspec.msgpack.encode([CLUSTER, "forget", ["a"]]), "unknown kind"),
        (msgspec.msgpack.encode([CLUSTER, "beat", [0, 1]]), "malformed"),
        (msgspec.msgpack.encode([CLUSTER, "beat", [1, -1]]), "malformed"),
        (msgspec.msgpack.encode([CLUSTER, "beat", [1, 1 << 63]]), "malformed"),
        (msgspec.msgpack.encode([CLUSTER, "topics", [["a", 1, []]]]), "malformed"),
        (msgspec.msgpack.encode([CLUSTER, "topics", [["a", 1, [65]]]]), "malformed"),
        (msgspec.msgpack.encode([CLUSTER, "topics", [["a", 1, [2, 1]]]]), "do not rise"),
        (msgspec.msgpack.encode([CLUSTER, "topics", [["a b", 1, [1]]]]), "character"),
        (msgspec.msgpack.encode([CLUSTER, "groups", b"\x91\xc1"]), "malformed map"),
        (groups_operation(CLUSTER, [GroupRecord(1, "a b", Epoch(1, 1), 1, [GroupMember(1, "h", 1, "", {})])]), "char"),
    ],
)
def test_what_is_refused(operation: bytes, why: str) -> None:
    records = applied(beat_operation(CLUSTER, 1, 7))
    before = records.dump()
    error, value = records.apply(operation)
    assert why in error
    assert value == b""
    assert records.known(operation) == (error, value)
    assert records.dump() == before


def test_an_answer_says_what_is_held() -> None:
    """A repeated or late operation is answered with what is held, so a call without an answer is simply repeated."""
    records = applied(topics_operation(CLUSTER, {"t": TopicPlace(9, (1, 2))}), beat_operation(CLUSTER, 2, 5))
    late = topics_operation(CLUSTER, {"t": TopicPlace(3, (1,))})
    assert records.apply(late) == ("", msgspec.msgpack.encode([["t", 9]]))
    assert records.view.topics["t"] == TopicPlace(9, (1, 2))
    assert records.apply(beat_operation(CLUSTER, 2, 4)) == ("", msgspec.msgpack.encode(5))
    known = GroupRecord(2, "g", Epoch(4, 1), 1, [GroupMember(1, "h", 1, "", {})])
    assert records.apply(groups_operation(CLUSTER, [known])) == ("", msgspec.msgpack.encode([[2, 4, 1, 0]]))


def test_topics_are_bounded() -> None:
    """What is known goes on to be renewed; what is new is left out, and keeps nothing else out."""
    records = applied(topics_operation(CLUSTER, {name: TopicPlace(1, (1,)) for name in "abc"}), topics_max=3)
    both = topics_operation(CLUSTER, {"a": TopicPlace(2, (1,)), "d": TopicPlace(2, (1,))})
    assert records.apply(both) == ("", msgspec.msgpack.encode([["a", 2]]))
    assert records.known(both) == ("", msgspec.msgpack.encode([["a", 2]])), "it is not written for ever"
    assert sorted(records.view.topics) == ["a", "b", "c"]


def test_processes_that_have_kept_other_topics_merge_what_both_have() -> None:
    """Names of deleted topics stay, so the bound is reached some day, and not by the same name in each process."""
    records = applied(topics_operation(CLUSTER, {name: TopicPlace(1, (1,)) for name in "abc"}), topics_max=3)
    other = applied(topics_operation(CLUSTER, {name: TopicPlace(2, (1, 2)) for name in "bcd"}), topics_max=3)
    records.merge(other.dump())
    assert records.view.topics == {
        "a": TopicPlace(1, (1,)),
        "b": TopicPlace(2, (1, 2)),
        "c": TopicPlace(2, (1, 2)),
    }


def test_a_dump_of_another_cluster_or_damaged_changes_nothing() -> None:
    records = applied(beat_operation(CLUSTER, 1, 7))
    before = records.dump()
    for data in (b"", b"\xc1", Records(OTHER).dump(), before[:-1], before + b"\0"):
        with pytest.raises(WireError):
            records.merge(data)
    assert records.dump() == before
