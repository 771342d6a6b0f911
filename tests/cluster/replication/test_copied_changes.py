"""What a copy of the truth changes holds back what the changes that it copies would: sends to a changed topic, offsets
of a deleted consumer group."""

from __future__ import annotations

from cluster.replication.offset_order import Effects, LeavingGroups
from cluster.replication.pending_requests import PendingCommands, TopicBarriers
from statemachine.cluster_wide.truth_journal import TruthKind
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
