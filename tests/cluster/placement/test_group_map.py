"""The map of the groups: what is taken from others, in which order whatever comes, and whom a node dials."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.placement.group_map import (
    MAP_BYTES_MAX,
    MEMBERS_MAX,
    RECORD_BYTES_MAX,
    Epoch,
    GroupMember,
    GroupRecord,
    GroupRecords,
    decode,
    dialled,
    encode,
    news,
    rank,
    same_addresses,
    same_names,
)
from cluster.runtime.peer_frames import WireError
from raftlog.types import GROUPS_MAX
from tests.support.rows import each_row


def member(node: int = 1, host: str = "10.0.0.1", **listeners: str) -> GroupMember:
    return GroupMember(node, host, 10912, f"{host}:9644", listeners or {"broker": f"{host}:10911"})


def record(group: int, term: int = 1, index: int = 0, *, leader: int = 1, name: str = "") -> GroupRecord:
    return GroupRecord(group, name or f"raftmq-g{group:02d}", Epoch(term, index), leader, [member(1), member(2)])


HOSTS = st.sampled_from(["a", "b", "10.0.0.1", "fe80::1", "n1.example.com"])
MEMBERS = st.builds(
    GroupMember,
    st.integers(1, 65535),
    HOSTS,
    st.integers(1, 65535),
    st.sampled_from(["", "a:9644"]),
    st.dictionaries(st.sampled_from(["broker", "namesrv", "x"]), st.sampled_from(["a:1", "[fe80::1]:2"])),
)
RECORDS = st.builds(
    GroupRecord,
    st.integers(1, 5),
    st.sampled_from(["raftmq", "raftmq-g02", "другая"]),
    st.builds(Epoch, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    st.integers(1, 3),
    st.lists(MEMBERS, min_size=1, max_size=3, unique_by=lambda each: each.node).map(
        lambda members: sorted(members, key=lambda each: each.node)
    ),
    st.lists(st.integers(1, 3), unique=True).map(sorted),
)
MAPS = st.dictionaries(st.integers(1, 5), RECORDS).map(
    lambda made: {group: msgspec.structs.replace(each, group=group) for group, each in made.items()}
)


def merged(known: GroupRecords, heard: GroupRecords) -> GroupRecords:
    return {**known, **news(known, heard.values())}


# --- bytes -----------------------------------------------------------------------------------------------------------


@given(MAPS)
def test_what_is_encoded_is_decoded_to_the_same(made: GroupRecords) -> None:
    assert {each.group: each for each in decode(encode(made.values()))} == made


@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(-(1 << 63), (1 << 64) - 1),
                st.text(max_size=5),
                st.binary(max_size=5),
            ),
            lambda inner: st.one_of(
                st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=3), inner, max_size=4)
            ),
        ).map(msgspec.msgpack.encode),
    )
)
@example(b"\x91" * 100_000)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"")
def test_any_bytes_are_a_map_or_an_error_of_the_wire(payload: bytes) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode(payload), list)


def test_a_map_with_any_bytes_changed_is_a_map_or_an_error_of_the_wire() -> None:
    whole, rng = encode([record(group) for group in (1, 2, 64)]), random.Random(7)
    taken = 0
    for _ in range(20_000):
        spoiled = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        with contextlib.suppress(WireError):
            for each in decode(bytes(spoiled[: rng.randint(1, 2) * len(spoiled)])):
                assert 1 <= each.group <= GROUPS_MAX
                assert 1 <= len(each.members) <= MEMBERS_MAX
                taken += 1
    assert taken > 100, "some changes leave a map"


def rows(**changes: Any) -> list[Any]:
    """A map of one group, as a list, in which one field is another."""
    members = [[1, "h", 1, "", {"broker": "h:1"}]]
    row = {"group": 2, "name": "g2", "epoch": [3, 4, 0], "leader": 1, "members": members, "away": [1]}
    return [list((row | changes).values())]


@each_row(
    "changes",
    [
        {"group": 0},
        {"group": 65},
        {"group": True},
        {"group": "2"},
        {"name": ""},
        {"name": "n" * 256},
        {"name": "two words"},
        {"name": "line\n"},
        {"epoch": [3]},
        {"epoch": [3, 4, -1]},
        {"epoch": [3, 4, 0, 1]},
        {"away": None},
        {"away": [0]},
        {"away": [2, 1]},
        {"away": [1, 1]},
        {"away": [*range(1, MEMBERS_MAX + 2)]},
        {"epoch": [-1, 4]},
        {"epoch": [3, 1 << 63]},
        {"epoch": [3, 4.0]},
        {"leader": 0},
        {"leader": 65536},
        {"members": []},
        {"members": [[node, "h", 1, "", {}] for node in range(1, MEMBERS_MAX + 2)]},
        {"members": [[2, "h", 1, "", {}], [1, "h", 1, "", {}]]},
        {"members": [[1, "h", 1, "", {}], [1, "h", 1, "", {}]]},
        {"members": [[1, "", 1, "", {}]]},
        {"members": [[1, "h\0", 1, "", {}]]},
        {"members": [[1, "h", 0, "", {}]]},
        {"members": [[1, "h", 1, "nowhere", {}]]},
        {"members": [[1, "h", 1, "", {"broker": "h"}]]},
        {"members": [[1, "h", 1, "", {"broker": "h:0"}]]},
        {"members": [[1, "h", 1, "", {f"l{n}": "h:1" for n in range(17)}]]},
        {"members": [[n, "h" * 255, 1, "", {"x" * 200: "h" * 240 + ":1"}] for n in range(1, MEMBERS_MAX + 1)]},
    ],
)
def test_each_field_has_a_range(changes: dict[str, Any]) -> None:
    assert [each.group for each in decode(msgspec.msgpack.encode(rows()))] == [2]
    with pytest.raises(WireError):
        decode(msgspec.msgpack.encode(rows(**changes)))


def test_groups_rise_and_are_not_too_many() -> None:
    for groups in ([2, 2], [3, 2], [*range(1, 65), 64]):
        with pytest.raises(WireError):
            decode(msgspec.msgpack.encode([rows(group=group)[0] for group in groups]))
    with pytest.raises(WireError, match="bytes"):
        decode(bytes(MAP_BYTES_MAX + 1))


def test_the_largest_map_can_be_passed_on() -> None:
    most = [member(node, "h" * 60, broker="b" * 60 + ":1", other="o" * 60 + ":1") for node in range(1, MEMBERS_MAX + 1)]
    full = [GroupRecord(group, "n" * 255, Epoch(1, 1), 1, most) for group in range(1, GROUPS_MAX + 1)]
    assert decode(encode(full)) == full
    assert len(encode(full)) < RECORD_BYTES_MAX * GROUPS_MAX < MAP_BYTES_MAX


def test_a_later_version_may_add_fields() -> None:
    row = rows()[0]
    row[4][0].append("more of a member")
    assert decode(msgspec.msgpack.encode([[*row, 0, False, {"more": "of a group"}]])) == decode(
        msgspec.msgpack.encode(rows())
    )


# --- merging ---------------------------------------------------------------------------------------------------------


@given(MAPS, MAPS, MAPS)
def test_the_order_of_news_does_not_matter(a: GroupRecords, b: GroupRecords, c: GroupRecords) -> None:
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, a) == a == merged(a, {})
    assert merged(merged(a, b), b) == merged(a, b)


@given(MAPS, st.lists(RECORDS, max_size=6))
def test_epochs_only_rise(known: GroupRecords, heard: list[GroupRecord]) -> None:
    after = {**known, **news(known, heard)}
    assert all(after[group].epoch >= before.epoch for group, before in known.items())
    assert all(rank(after[each.group]) >= rank(each) for each in heard)


def test_only_a_higher_epoch_replaces_a_record() -> None:
    known = {2: record(2, 5, 7)}
    assert news(known, [record(2, 5, 6), record(2, 4, 9), record(2, 5, 7)]) == {}
    assert news(known, []) == {}
    assert news(known, [record(2, 5, 8)]) == {2: record(2, 5, 8)}
    assert news(known, [record(2, 6, 0), record(2, 6, 1), record(2, 5, 9)]) == {2: record(2, 6, 1)}


def test_others_know_nothing_better_of_the_own_group() -> None:
    assert news({}, [record(2, 9), record(3, 1)], own=2) == {3: record(3, 1)}


def test_the_lower_number_keeps_a_name() -> None:
    names = {1: "raftmq", 2: "b", 3: "raftmq", 4: "b", 5: "b"}
    assert same_names({group: record(group, name=name) for group, name in names.items()}) == {3: 1, 4: 2, 5: 2}
    assert same_names({1: record(1), 2: record(2)}) == {}


def test_a_process_is_a_member_of_one_group() -> None:
    known = {
        number: GroupRecord(number, f"g{number}", Epoch(1, 0), 1, [member(1, hosts[0]), member(2, hosts[1])])
        for number, hosts in {1: "ab", 2: "cd", 3: "xb", 4: "cb"}.items()
    }
    assert same_addresses(known) == {(3, 2): (1, 2), (4, 1): (2, 1), (4, 2): (1, 2)}
    assert same_addresses({1: known[1], 2: known[2]}) == {}


# --- whom to dial ----------------------------------------------------------------------------------------------------


def hops(groups: list[int]) -> int:
    """The most links over which news of a group travels to another, if group 1 is away. News goes both ways on a link,
    but of the groups that are dialled one member alone hears what the dialler says: only the way to the dialler counts.
    """
    most = 0
    for start in groups:
        far, todo = {start: 0}, deque([start])
        while todo:
            at = todo.popleft()
            for group in dialled(at, groups):
                if group in groups and group not in far:
                    far[group] = far[at] + 1
                    todo.append(group)
        assert far.keys() == set(groups)
        most = max(most, *far.values())
    return most


def test_news_is_six_links_away_at_most_without_the_first_group() -> None:
    assert hops(list(range(2, 65))) <= 6
    assert hops([2, 3, 17, 40, 64]) <= 3
    assert hops([7, 9]) == 1


def test_news_passes_by_a_dead_first_group_that_is_known() -> None:
    """Group 1 keeps its place among the numbers while it is away."""
    groups = list(range(1, 65))
    most = 0
    for start in groups[1:]:
        far, todo = {start: 0}, deque([start])
        while todo:
            at = todo.popleft()
            for group in dialled(at, groups):
                if group not in far:
                    far[group] = far[at] + 1
                    todo.append(group)
        assert far.keys() == set(groups[1:])
        most = max(most, *far.values())
    assert most <= 6


def test_a_node_dials_nine_others_at_most() -> None:
    for count in range(1, GROUPS_MAX + 1):
        groups = range(1, count + 1)
        for own in groups:
            found = dialled(own, groups)
            assert len(found) == len(set(found)) <= 6
            assert own not in found
            assert 1 not in found
    assert dialled(1, [1]) == dialled(5, []) == []
    assert dialled(1, range(1, 65)) == [2, 3, 5, 9, 17, 33]
    assert dialled(63, range(1, 65)) == [64, 3, 7, 15, 31], "two places after it is group 1"
