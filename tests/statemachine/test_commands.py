"""Every command: what it answers and what is there afterwards; and that no bytes or arguments break apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.types import EntryType
from statemachine import commands, levels
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.command_table import COMMANDS, unpack
from statemachine.commands import Command, CommandResult, Invalid, Unknown
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import GroupConfig, PutGroup, Subscribe
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.rows.digest import digest
from statemachine.rows.kv import GROUPS
from statemachine.topics.topics import CreateTopic, TopicConfig
from tests.support.rows import each_row


class Broker:
    """A state and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)

    def run(self, *run: commands.Command) -> list[CommandResult]:
        return self.state.apply([self.log.command(*run)]).results[0]

    def one(self, command: commands.Command) -> CommandResult:
        return self.run(command)[0]

    def raw(self, *run: object) -> list[CommandResult]:
        """The results of commands that may not be valid."""
        return self.state.apply([self.log.raw(*run)]).results[0]


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_create_topic_gives_ids_and_updates_only_what_is_named(broker: Broker) -> None:
    created = broker.one(CreateTopic({"name": "a", "read_queues": 4, "attributes": {"dedup": "strict"}}, False))
    assert created == (True, "", TopicConfig(1, "a", 4, 8, 6, False, 0, {"dedup": "strict"}))
    assert broker.one(CreateTopic({"name": "b"}, True)).value.id == 2
    grown = broker.one(CreateTopic({"name": "a", "read_queues": 16, "perm": 4}, False))
    assert grown.value == TopicConfig(1, "a", 16, 8, 4, False, 0, {"dedup": "strict"})
    assert broker.state.topics["a"] == broker.state.topics_by_id[1] == grown.value
    assert grown.value.dedup == "strict"
    assert grown.value.queues == 16


def test_create_if_absent_leaves_what_is_there(broker: Broker) -> None:
    first = broker.one(CreateTopic({"name": "a", "read_queues": 4}, True)).value
    again = broker.one(CreateTopic({"name": "a", "read_queues": 9}, True))
    assert again == (True, "exists", first)


def test_a_topic_made_again_from_its_map_is_the_same(broker: Broker) -> None:
    first = broker.one(CreateTopic({"name": "a", "order": True, "sys_flag": 3, "attributes": {"x": "y"}}, True))
    assert broker.one(CreateTopic(first.value.to_map(), False)) == first


def test_a_topic_of_a_deleted_name_gets_a_new_id_and_starts_empty(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "a"}, True), CreateTopic({"name": "b"}, True))
    broker.state.apply([broker.log.messages(broker.log.run(1, 0, 300), broker.log.run(2, 0, 5))])
    broker.run(CommitOffsets([("g", 1, 0, 7), ("g", 2, 0, 3), ("h", 1, 3, 9)]))
    deleted = broker.one(DeleteTopic("a"))
    assert (deleted.ok, deleted.value.id) == (True, 1)
    assert broker.state.offsets_of_group("g") == [(2, 0, 3)]
    assert broker.state.offsets_of_group("h") == []
    assert broker.state.max_offset(1, 0) == 0
    assert broker.state.max_offset(2, 0) == 5
    assert broker.one(CreateTopic({"name": "a"}, True)).value.id == 3
    assert broker.state.max_offset(3, 0) == 0
    assert BrokerState(broker.kv).topics == broker.state.topics


def test_deleting_and_creating_in_one_entry(broker: Broker) -> None:
    results = broker.run(
        CreateTopic({"name": "a"}, True),
        DeleteTopic("a"),
        DeleteTopic("a"),
        CreateTopic({"name": "a"}, True),
    )
    assert [(r.ok, r.code) for r in results] == [(True, ""), (True, ""), (False, "not_found"), (True, "")]
    assert broker.state.topics["a"].id == 2
    assert list(broker.state.topics_by_id) == [2]


def test_group_keeps_subscriptions_when_its_config_changes(broker: Broker) -> None:
    assert broker.one(Subscribe("g", [])).code == "not_found"
    broker.one(PutGroup({"name": "g", "retry_max_times": 3}, True))
    broker.one(Subscribe("g", [("b", "TAG", "x || y", 5), ("a", "TAG", "*", 4)]))
    changed = broker.one(PutGroup({"name": "g", "consume_enable": False}, False)).value
    assert changed.subscriptions == {"a": ("TAG", "*", 4), "b": ("TAG", "x || y", 5)}
    assert (changed.consume_enable, changed.retry_max_times, changed.retry_queue_nums) == (False, 3, 1)
    assert broker.one(PutGroup({"name": "g"}, True)) == (True, "exists", changed)
    assert broker.one(PutGroup(changed.to_map(), False)).value == changed
    assert broker.one(Subscribe("g", [("c", "TAG", "*", 6)])).value.subscriptions == {"c": ("TAG", "*", 6)}
    assert BrokerState(broker.kv).groups == broker.state.groups


@pytest.mark.parametrize("clean", [True, False])
def test_delete_group(broker: Broker, clean: bool) -> None:
    broker.run(CreateTopic({"name": "a"}, True), PutGroup({"name": "g"}, True))
    broker.run(CommitOffsets([("g", 1, 0, 7), ("g2", 1, 0, 8)]))
    assert broker.one(DeleteGroup("g", clean)).ok
    assert broker.one(DeleteGroup("g", clean)).code == "not_found"
    assert "g" not in broker.state.groups
    assert broker.state.offset("g", 1, 0) == (None if clean else 7)
    assert broker.state.offset("g2", 1, 0) == 8
    assert BrokerState(broker.kv).offsets_of_group("g") == broker.state.offsets_of_group("g")


def test_offsets_move_both_ways_and_skip_topics_that_are_gone(broker: Broker) -> None:
    broker.one(CreateTopic({"name": "a"}, True))
    assert broker.one(CommitOffsets([("g", 1, 0, 7), ("g", 1, 1, 1), ("g", 1, 0, 9)])) == (True, "", 3)
    assert broker.state.offset("g", 1, 0) == 9
    assert broker.one(CommitOffsets([("g", 1, 0, 2), ("g", 5, 0, 2)])) == (False, "not_found", 1)
    assert broker.state.offsets_of_group("g") == [(1, 0, 2), (1, 1, 1)]
    assert broker.state.offset("g", 9, 9) is None
    assert broker.state.offset("nobody", 1, 0) is None


LONG = 257
INVALID: list[tuple[str, list[Any], str]] = [
    ("create_topic", [{"name": ""}, True], "1 to 256"),
    ("create_topic", [{"name": "a b"}, True], "letters, digits"),
    ("create_topic", [{"name": "a\n"}, True], "letters, digits"),
    ("create_topic", [{"name": "é"}, True], "letters, digits"),
    ("create_topic", [{"name": "a" * LONG}, True], "1 to 256"),
    ("create_topic", [{"name": "%RETRY%" + "a" * 249}, True], "1 to 255"),
    ("create_topic", [{"name": 5}, True], "text"),
    ("create_topic", [{}, True], "topic name"),
    ("create_topic", [{"name": "a", "queues": 5}, True], "unknown fields"),
    ("create_topic", [{"name": "a", "read_queues": 0}, True], "read_queues"),
    ("create_topic", [{"name": "a", "write_queues": True}, True], "write_queues"),
    ("create_topic", [{"name": "a", "perm": 16}, True], "perm"),
    ("create_topic", [{"name": "a", "order": 1}, True], "order"),
    ("create_topic", [{"name": "a", "sys_flag": -1}, True], "sys_flag"),
    ("create_topic", [{"name": "a", "attributes": {"dedup": "maybe"}}, True], "off, retry, strict"),
    ("create_topic", [{"name": "a", "attributes": {"ack.level": "some"}}, True], "attribute ack.level must be one of"),
    ("create_topic", [{"name": "a", "attributes": {"a": 1}}, True], "attributes"),
    ("create_topic", [{"name": "a"}, 1], "if_absent"),
    ("create_topic", [{"name": "a"}], "2 arguments"),
    ("create_topic", ["a", True], "`config`"),
    ("delete_topic", [None], "`name`"),
    ("put_group", [{"name": "a" * 121}, True], "1 to 120"),
    ("put_group", [{"name": "g", "retry_max_times": "16"}, True], "retry_max_times"),
    ("put_group", [{"name": "g", "consume_enable": 1}, True], "consume_enable"),
    ("put_group", [{"name": "g", "subscriptions": {}}, True], "unknown fields"),
    ("put_group", [{"name": "g", "group_retry_policy": {}}, True], "group_retry_policy"),
    ("delete_group", ["g", 1], "clean_offsets"),
    ("subscribe", ["g", {"a": 1}], "`subscriptions`"),
    ("subscribe", ["g", [["t", "TAG", "*"]]], "length 4, got 3 - at `subscriptions[0]`"),
    ("subscribe", ["g", [["t", "TAG", "*", "1"]]], "`subscriptions[0][3]`"),
    ("commit_offsets", [5], "commit_offsets: Expected `array`, got `int` - at `rows`"),
    ("commit_offsets", [[["g", 1, 0]]], "`rows[0]`"),
    ("commit_offsets", [[["g", 1, 0, -1]]], "`rows[0][3]`"),
    ("commit_offsets", [[["g", 1, 0, 2**63]]], "`rows[0][3]`"),
    ("commit_offsets", [[["g\0", 1, 0, 1]]], "`rows[0][0]`"),
    ("commit_offsets", [[["g", 1, 2**32, 1]]], "`rows[0][2]`"),
    ("expire", [-1], "before_ms"),
]


def test_names_of_the_greatest_length_are_taken(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "a" * 256}, True), PutGroup({"name": "a" * 120}, True))
    assert "a" * 256 in broker.state.topics
    assert "a" * 120 in broker.state.groups


@each_row(("name", "arguments", "why"), INVALID)
def test_unacceptable_arguments_are_answered_and_change_nothing(
    broker: Broker, rows_of: Any, name: str, arguments: list[Any], why: str
) -> None:
    broker.run(CreateTopic({"name": "there"}, True), PutGroup({"name": "g"}, True))
    before = {family: rows for family, rows in rows_of(broker.kv).items() if family != "meta"}
    (result,) = broker.raw([name, *arguments])
    assert (result.ok, result.code) == (False, "invalid")
    assert why in result.value
    after = {family: rows for family, rows in rows_of(broker.kv).items() if family != "meta"}
    assert after == before


@pytest.mark.parametrize("name", ["a", "%RETRY%" + "g" * 248, "%DLQ%g", "A-b_c|d%9", "a" * 256])
def test_names_at_the_limit_are_fine(broker: Broker, name: str) -> None:
    assert broker.one(CreateTopic({"name": name}, True)).ok


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["name", "perm", "attributes", "order", "retry_max_times", "broker_id", "consume_enable"])
arguments = st.lists(anything | st.dictionaries(fields, anything, max_size=3), max_size=7)
known = st.sampled_from(sorted(COMMANDS.keys() - {"finalize"}))
"""All but one, which rightly stops a node that does not know the level."""


@given(st.lists(st.tuples(known, arguments), max_size=4))
def test_no_arguments_stop_apply(new_log: Callable[[], Any], run: list[tuple[str, list[Any]]]) -> None:
    """Whatever a client managed to have proposed, every replica answers and goes on, and a restart reads it."""
    broker = Broker(new_log())
    results = broker.raw(["put_group", {"name": "g"}, True], *([name, *rest] for name, rest in run))
    assert len(results) == len(run) + 1
    assert all(isinstance(result, CommandResult) for result in results)
    again = BrokerState(broker.kv)
    assert (again.topics, again.groups) == (broker.state.topics, broker.state.groups)


@given(known, arguments)
def test_what_is_invalid_changes_no_row(new_log: Callable[[], Any], name: str, rest: list[Any]) -> None:
    broker = Broker(new_log())
    broker.raw(["create_topic", {"name": "t"}, True], ["put_group", {"name": "g"}, True])
    before = digest(broker.kv)
    (result,) = broker.raw([name, *rest])
    assert result.code != "invalid" or (not result.ok and digest(broker.kv) == before)


def test_an_unknown_command_stops_the_node(broker: Broker) -> None:
    """Skipping what a newer leader means would make replicas differ."""
    with pytest.raises(InvariantViolationError, match=r"index 0\): unknown command 'fly'.*newer RaftMQ"):
        broker.raw(["fly", 1])


@given(st.binary(max_size=200) | anything.map(msgpack.packb))
def test_unpack_gives_commands_or_valueerror(data: bytes) -> None:
    try:
        run = unpack(data)
    except ValueError:
        return
    assert all(isinstance(command, Command | Invalid | Unknown) for command in run)


@each_row("data", [b"\x91\xc0", b"\xc1", b"\x91", b"\x81\x90\x01", b"\x91\x90", b"\x90\x90", b"\xa1\xff"])
def test_unpack_refuses_what_is_no_command_array(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is msgpack's
        unpack(data)


def test_an_entry_that_is_no_command_array_stops_the_node(broker: Broker) -> None:
    with pytest.raises(InvariantViolationError, match=r"term 1, index 0"):
        broker.state.apply([broker.log.add(EntryType.COMMAND, b"\xc1")])


def test_a_group_refuses_broadcasting_consumers_from_level_13_on(broker: Broker) -> None:
    """mqadmin sets consume_broadcast_enable to False unless it is told otherwise, and no earlier build obeyed it: what
    was set below level 13 does not count, and its row has the form that such a build reads."""

    def group() -> GroupConfig:
        assert broker.state.groups["g"] == BrokerState(broker.kv).groups["g"], "as it is read back"
        return broker.state.groups["g"]

    def row() -> list[Any]:
        found: list[Any] = msgpack.unpackb(broker.kv.get(GROUPS, b"g") or b"")
        return found

    broker.one(Finalize(levels.SETTINGS_LEVEL - 1))
    broker.one(PutGroup({"name": "g", "consume_broadcast_enable": False}, False))
    for touch in (
        Finalize(levels.SETTINGS_LEVEL),
        Subscribe("g", [("t", "TAG", "*", 1)]),
        PutGroup({"name": "g", "retry_max_times": 3}, False),
        PutGroup({"name": "g", "consume_broadcast_enable": False}, True),
    ):
        assert (group().refuses_broadcasts, group().is_ignored_broadcast, len(row())) == (False, True, 14), touch
        broker.one(touch)
    assert group().to_map()["consume_broadcast_enable"] is True, "what is in force"
    broker.one(PutGroup({"name": "g", "consume_broadcast_enable": False}, False))
    assert (group().refuses_broadcasts, group().is_ignored_broadcast, len(row())) == (True, False, 15)
    broker.one(Subscribe("g", []))
    assert group().refuses_broadcasts
    broker.one(PutGroup({"name": "g", "consume_broadcast_enable": True}, False))
    assert (group().refuses_broadcasts, group().is_ignored_broadcast, len(row())) == (False, False, 14)
