"""What a copy of the truth changes holds back what the changes that it copies would: sends to a changed topic, offsets
of a deleted consumer group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.replication.offset_order import Effects, LeavingGroups, OffsetOrder
from cluster.replication.pending_requests import PendingCommands
from cluster.replication.topic_slots import TopicBarriers
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.truth import CopyTruth

PAGE = CopyTruth(
    4,
    9,
    [
        (TruthKind.TOPIC, "gone", None),
        (TruthKind.GROUP, "gone", None),
        (TruthKind.USER, 7, None),
        (TruthKind.GROUP, "new", [1]),
        (TruthKind.TOPIC, "new", [2]),
        (TruthKind.TOPIC, "new", [3]),
    ],
)


def test_sends_to_copied_topics_wait() -> None:
    barriers = TopicBarriers()
    assert barriers.raise_for([PAGE]) == ["gone", "new", "new"]
    assert ("gone" in barriers, "new" in barriers, 7 in barriers) == (True, True, False)
    barriers.lower_for([PendingCommands([PAGE], b"", lambda result: None, 0)])
    assert not barriers


def test_commits_of_a_group_go_before_the_copy_of_its_end_and_none_comes_behind() -> None:
    leaving, effects = LeavingGroups(), Effects(flush_ms=100)
    for group in ("gone", "new"):
        effects.offset(group, 1, 0, 5, now_ms=0)
    assert effects.take_before(PAGE) == [("gone", 1, 0, 5)]
    leaving.raise_for([PAGE])
    assert ("gone" in leaving, "new" in leaving) == (True, False)
    leaving.lower_for([PAGE])
    assert "gone" not in leaving


AGAIN = CopyTruth(4, 9, [(TruthKind.OFFSETS, "g", None), (TruthKind.GROUP, "g", [1])])
"""A group that was deleted with its offsets, and made again: of the first change only the end of offsets is left."""


def test_commits_of_a_group_end_with_the_copy_of_the_end_of_its_offsets() -> None:
    effects, leaving = Effects(flush_ms=100), LeavingGroups()
    effects.offset("g", 1, 0, 5, now_ms=0)
    assert effects.take_before(AGAIN) == [("g", 1, 0, 5)]
    leaving.raise_for([CopyTruth(4, 9, AGAIN.rows[:1])])
    assert "g" in leaving
    leaving.raise_for([AGAIN])
    assert "g" not in leaving, "for what comes behind it is there again"
    leaving.lower_for([CopyTruth(4, 9, AGAIN.rows[:1])])
    leaving.lower_for([AGAIN])
    assert "g" not in leaving


@pytest.mark.parametrize(
    "copied", [AGAIN, CopyTruth(4, 9, [(TruthKind.GROUP, "g", None), (TruthKind.GROUP, "g", [1])]), CommitOffsets([])]
)
def test_a_commit_is_not_dropped_because_the_state_has_what_will_end(copied: Command) -> None:
    state: Any = SimpleNamespace(groups={"g": None}, offset=lambda *_: 5)
    order = OffsetOrder(100, cast("Any", SimpleNamespace(applied_index=5)), state, lambda *_: None, lambda: 0)
    order.commit_later("g", 1, 0, 5)
    assert not order.effects.waiting, "it is there"
    order.queued([copied])
    order.commit_later("g", 1, 0, 5)
    assert order.effects.has_offset("g", 1, 0)
