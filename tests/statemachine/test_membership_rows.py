"""MEMBERSHIP in the state: a row, shown to readers, read back; an event is acknowledged once and by its index."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog import membership as memberships
from raftlog.errors import FrameError
from raftlog.membership import Membership
from raftlog.storage.files.genesis import Voter
from raftlog.types import EntryType, NodeId
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.members import Acknowledge

MEMBERS = Membership(UUID(int=5), (Voter(NodeId(3), UUID(int=3)),), (), memberships.UNSAFE_RECOVER, "a disk burnt")


def test_the_newest_membership_is_a_row(new_log: Any) -> None:
    log = new_log()
    kv = MemoryKV()
    state = BrokerState(kv)
    assert BrokerState(MemoryKV()).membership is None
    state.apply([log.add(EntryType.NOOP), log.add(EntryType.MEMBERSHIP, memberships.encode(MEMBERS))])
    assert state.membership == MEMBERS._replace(index=1)
    state.apply([log.add(EntryType.MEMBERSHIP, memberships.encode(MEMBERS._replace(detail="two did")))])
    assert state.membership == BrokerState(kv).membership == MEMBERS._replace(detail="two did", index=2)


def test_one_that_a_newer_version_wrote_stops_the_node(new_log: Any) -> None:
    log = new_log()
    state = BrokerState(MemoryKV())
    with pytest.raises(FrameError, match="MEMBERSHIP payload at index 0 is not readable"):
        state.apply([log.add(EntryType.MEMBERSHIP, b"\x80")])
    assert (state.applied.index, state.membership) == (-1, None)


def test_an_event_is_acknowledged_by_its_index(new_log: Any) -> None:
    log = new_log()
    kv = MemoryKV()
    state = BrokerState(kv)
    state.apply([log.add(EntryType.NOOP), log.add(EntryType.MEMBERSHIP, memberships.encode(MEMBERS))])
    run = state.apply([log.command(Acknowledge(7), Acknowledge(0), Acknowledge(1))])
    assert [(each.ok, each.code) for each in run.results[0]] == [(False, "not_found"), (False, "invalid"), (True, "")]
    assert state.acknowledged == BrokerState(kv).acknowledged == 1
    state.apply([log.add(EntryType.MEMBERSHIP, memberships.encode(MEMBERS))])
    assert state.membership is not None
    assert state.membership.index > state.acknowledged
