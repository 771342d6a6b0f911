"""The moment when a learner has caught up, and when a wish for a leader is followed. No clock: times are arguments."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.members.changes import AFTER_ELECTION_MS, BETWEEN_MS, STEADY_MS, Preference, Rounds
from raftlog.core.status import PeerStatus
from raftlog.types import NOBODY, NodeId

FOUR = NodeId(4)
SHORT_MS = 500


def test_a_learner_has_caught_up_when_a_round_was_short() -> None:
    rounds = Rounds(SHORT_MS)
    assert not rounds.observe(FOUR, match_index=0, last_index=1000, now_ms=0)
    assert not rounds.observe(FOUR, 900, 2000, 3000)
    assert not rounds.observe(FOUR, 1000, 2500, 4000), "that round took 4 s; the next one ends at 2500"
    assert not rounds.observe(FOUR, 2499, 2600, 4400)
    assert rounds.observe(FOUR, 2500, 2700, 4499)


def test_a_learner_that_falls_behind_again_has_not() -> None:
    rounds = Rounds(SHORT_MS)
    rounds.observe(FOUR, 10, 10, 0)
    assert rounds.observe(FOUR, 10, 10, 1)
    assert rounds.observe(FOUR, 10, 99, 2)
    assert rounds.observe(FOUR, 11, 120, 400), "the round under way may still be short"
    assert not rounds.observe(FOUR, 12, 130, 2 + SHORT_MS)
    rounds.keep(set())
    assert not rounds.observe(FOUR, 12, 130, 1000), "nothing is remembered of who is no learner"


def near(node: int, **changes: Any) -> PeerStatus:
    return PeerStatus(NodeId(node), 90, 91, "REPLICATE", True, 10, 0, 0, True, True)._replace(**changes)


VOTERS = (NodeId(1), NodeId(2), NodeId(3))
PEERS = (near(2), near(3))


def asked(preference: Preference, now_ms: int, peers: tuple[PeerStatus, ...] = PEERS, term: int = 5) -> NodeId:
    return preference.choose(term, VOTERS, peers, now_ms)


def test_leadership_goes_to_the_best_that_is_near_and_not_again_and_again() -> None:
    preference = Preference(NodeId(1), "3;2;1", 64)
    assert asked(preference, 0) == NOBODY
    assert asked(preference, AFTER_ELECTION_MS - 1) == NOBODY, "an election had a reason"
    assert asked(preference, AFTER_ELECTION_MS) == 3
    assert asked(preference, AFTER_ELECTION_MS + BETWEEN_MS - 1) == NOBODY, "the attempt failed: not at once again"
    assert asked(preference, AFTER_ELECTION_MS + BETWEEN_MS) == 3
    assert asked(preference, AFTER_ELECTION_MS + 2 * BETWEEN_MS, term=6) == NOBODY, "another term is another election"


@pytest.mark.parametrize("far", [{"lag": 65}, {"fit": False}, {"caught_up": False}])
def test_who_is_far_or_unfit_is_passed_over_and_waited_for(far: dict[str, object]) -> None:
    preference = Preference(NodeId(1), "3;2", 64)
    peers = (near(2), near(3, **far))
    asked(preference, 0, peers)
    assert asked(preference, AFTER_ELECTION_MS, peers) == 2
    preference = Preference(NodeId(1), "3", 64)
    asked(preference, 0, peers)
    assert asked(preference, AFTER_ELECTION_MS, peers) == NOBODY
    assert asked(preference, AFTER_ELECTION_MS + 10) == NOBODY, "near for a moment only"
    assert asked(preference, AFTER_ELECTION_MS + 10 + STEADY_MS) == 3


def test_the_best_one_leads_on_and_so_does_everybody_without_a_wish() -> None:
    for wished in ("1;2", "", "9"):
        preference = Preference(NodeId(1), wished, 64)
        asked(preference, 0)
        assert asked(preference, 10 * BETWEEN_MS) == NOBODY
