"""Level 12: CHANGE entries have an author, and rows of topics say when and by whom they were made and changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from raftlog.errors import InvariantViolationError
from raftlog.types import EntryType
from statemachine import commands
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.command_table import in_entry, unpack_change
from statemachine.dedup import EndSessions
from statemachine.levels import ACCESS_LEVEL, CHANGES_LEVEL
from statemachine.rows import keys
from statemachine.rows.kv import TOPICS
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row
from tests.support.state_kit import FedState

SHORT, LONG = 7, 10


@pytest.fixture
def fed(new_log: Callable[[], Any]) -> FedState:
    return FedState(new_log())


def put(fed: FedState, name: str, author: str = "", **fields: Any) -> Any:
    packed = commands.pack([CreateTopic({"name": name, **fields}, False)])
    kind = EntryType.CHANGE if author else EntryType.COMMAND
    fed.log.now_ms += 1
    entry = fed.log.add(kind, commands.pack_change(author, packed) if author else packed)
    return fed.state.apply([entry]).results[0][0].value


def row(fed: FedState, topic_id: int) -> list[Any]:
    value = fed.kv.get(TOPICS, keys.U32.pack(topic_id))
    assert value is not None
    found: list[Any] = msgpack.unpackb(value)
    return found


def test_below_the_level_rows_are_those_of_the_version_before(fed: FedState) -> None:
    fed.run(Finalize(ACCESS_LEVEL))
    topic = put(fed, "T")
    assert (topic.created_ms, topic.changed_ms, topic.changed_by) == (0, 0, "")
    assert len(row(fed, topic.id)) == SHORT


def test_at_the_level_a_row_says_when_and_by_whom(fed: FedState) -> None:
    before = put(fed, "before")
    fed.run(Finalize(CHANGES_LEVEL))
    made = put(fed, "T", "ann at 10.0.0.1")
    assert (made.changed_by, made.created_ms) == ("ann at 10.0.0.1", made.changed_ms)
    assert made.created_ms > 0
    changed = put(fed, "T", "bob", perm=4)
    assert (changed.changed_by, changed.created_ms, changed.changed_ms > made.changed_ms) == (
        "bob",
        made.created_ms,
        True,
    )
    assert put(fed, "T").changed_by == "", "nobody asked: a send, or a node of the cluster"
    assert len(row(fed, made.id)) == LONG
    assert len(row(fed, before.id)) == SHORT, "no entry of the level touched it"
    touched = put(fed, "before", "bob", perm=4)
    assert (touched.created_ms, touched.changed_by) == (0, "bob"), "when it was made is not known"
    again = BrokerState(fed.kv)
    assert again.topics["before"] == touched


@each_row(
    "payload",
    [
        b"",
        b"\x90",
        b"\x91\xa1a",
        b"\x92\xa1a\xa1b",
        b"\x92\x01\x90",
        msgpack.packb(["a" * 201, []]),
        b"\x92\xa1a\x91\x90",
    ],
)
def test_a_change_that_is_none_stops_the_node(fed: FedState, payload: bytes) -> None:
    with pytest.raises(InvariantViolationError):
        fed.state.apply([fed.log.add(EntryType.CHANGE, payload)])


def test_commands_of_an_entry_are_found_whatever_its_type() -> None:
    packed = commands.pack([EndSessions([])])
    assert in_entry(EntryType.COMMAND, packed) == [EndSessions([])]
    assert in_entry(EntryType.CHANGE, commands.pack_change("ann", packed)) == [EndSessions([])]
    assert in_entry(EntryType.NOOP, b"") == []
    assert unpack_change(commands.pack_change("a" * 300, packed))[0] == "a" * 200
