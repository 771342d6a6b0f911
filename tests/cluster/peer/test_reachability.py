"""Whom the leader reaches: when a name moves, when it comes back, whose word counts, where it leads meanwhile."""

from __future__ import annotations

import pytest

from cluster.config.node_sections import RaftSection
from cluster.peer.reachability import AWAY_MS, BACK_MS, Reach, patience_ms, stand_ins
from cluster.runtime.peer_frames import WireError
from raftlog.types import NOBODY, NodeId
from tests.support.rows import each_row

ONE, TWO, THREE, FOUR, FIVE = (NodeId(number) for number in range(1, 6))
STEP_MS = 200


class Eye:
    """A Reach with a clock; `see` has it judge one peer for a while."""

    def __init__(self) -> None:
        self.reach = Reach()
        self.now_ms = 50_000
        self.out_ms = 0
        self.changes = 0

    def see(self, *, reached: bool, for_ms: int) -> frozenset[NodeId]:
        """Returns the nodes that are away afterwards."""
        for _ in range(for_ms // STEP_MS):
            self.now_ms += STEP_MS
            self.out_ms = 0 if reached else self.out_ms + STEP_MS
            self.changes += self.reach.judge({TWO: self.out_ms, THREE: 0}, self.now_ms)
        return self.reach.away


def test_a_name_moves_after_a_while_and_comes_back_after_a_calm_time() -> None:
    eye = Eye()
    assert eye.see(reached=True, for_ms=1000) == set()
    assert eye.see(reached=False, for_ms=AWAY_MS - STEP_MS) == set()
    assert eye.see(reached=False, for_ms=STEP_MS) == {TWO}
    assert eye.see(reached=False, for_ms=10_000) == {TWO}
    assert eye.see(reached=True, for_ms=BACK_MS) == {TWO}
    assert eye.see(reached=True, for_ms=STEP_MS) == set()
    assert eye.changes == 2


@pytest.mark.parametrize(("down_ms", "up_ms"), [(800, 600), (1200, 1200), (2000, 2400)])
def test_a_link_that_flaps_moves_a_name_once_at_most(down_ms: int, up_ms: int) -> None:
    eye = Eye()
    for _ in range(50):
        eye.see(reached=False, for_ms=down_ms)
        eye.see(reached=True, for_ms=up_ms)
    assert eye.changes == (1 if down_ms >= AWAY_MS else 0)


def test_a_peer_that_leaves_is_away_at_once_and_back_after_a_calm_time() -> None:
    reach, now_ms = Reach(), 50_000
    assert reach.judge({TWO: 0, THREE: 0}, now_ms, [TWO])
    assert reach.away == {TWO}
    assert not reach.judge({TWO: 0, THREE: 0}, now_ms + 10 * BACK_MS, [TWO])
    now_ms += 10 * BACK_MS
    assert not reach.judge({TWO: 0, THREE: 0}, now_ms)
    assert not reach.judge({TWO: 0, THREE: 0}, now_ms + BACK_MS - 1)
    assert reach.judge({TWO: 0, THREE: 0}, now_ms + BACK_MS)
    assert reach.away == set()


def test_names_of_several_nodes_are_not_kept_on_one_that_is_left() -> None:
    """Nodes were restarted one after the other, within 3 s each: every name led to the last, which then stopped, and a
    Java client that had asked just then reached nobody until its next poll."""
    reach, now_ms = Reach(), 50_000
    assert reach.judge({TWO: AWAY_MS, THREE: 0}, now_ms)
    assert not reach.judge({TWO: 0, THREE: 0}, now_ms + STEP_MS), "it waits for a calm time"
    assert reach.judge({TWO: 0, THREE: 0}, now_ms + 2 * STEP_MS, [THREE])
    assert reach.away == {THREE}
    assert reach.judge({TWO: AWAY_MS, THREE: 0}, now_ms + 3 * STEP_MS, [THREE])
    assert reach.away == {TWO, THREE}, "neither is reached"
    assert reach.judge({TWO: 0, THREE: 0}, now_ms + 4 * STEP_MS)
    assert len(reach.away) == 1, "both are reached again, and one may come back at once"


def test_who_is_no_member_any_more_is_not_away() -> None:
    reach = Reach()
    assert reach.judge({TWO: AWAY_MS}, 1)
    assert reach.judge({}, 2)
    assert reach.away == set()


def test_patience_follows_slow_heartbeats() -> None:
    assert patience_ms(RaftSection()) == AWAY_MS
    assert patience_ms(RaftSection(tick_ms=500, heartbeat_ticks=2)) == 3000


def test_only_the_leaders_word_counts_and_the_last_one_stays() -> None:
    reach = Reach()
    reach.judge({ONE: 0, THREE: AWAY_MS}, 1)
    assert reach.word(leads=False) is None
    assert reach.word(leads=True) == [3]
    assert reach.settle(TWO, NOBODY) == set(), "its own judgement is not the leader's"
    reach.heard(ONE, [4])
    reach.heard(THREE, None)
    assert reach.settle(TWO, ONE) == {4}
    assert reach.settle(TWO, NOBODY) == {4}, "nobody leads"
    assert reach.settle(TWO, THREE) == {4}, "the new leader has not said so yet"
    reach.heard(THREE, [1])
    assert reach.settle(TWO, THREE) == {1}
    assert reach.settle(TWO, TWO) == {3}, "it leads itself"
    reach.heard(ONE, None)
    assert reach.settle(TWO, ONE) == {3}, "what it said in an older term is over"


@each_row("word", ["1", 1, {}, [True], ["1"], [1.0], [None], list(range(1025))])
def test_a_malformed_word_is_a_wire_error(word: object) -> None:
    with pytest.raises(WireError, match="malformed list"):
        Reach().heard(ONE, word)


@each_row(
    ("unreached", "wanted"),
    [
        ([], [1, 2, 3, 4, 5]),
        ([3], [1, 2, 4, 4, 5]),
        ([5], [1, 2, 3, 4, 1]),
        ([4, 5], [1, 2, 3, 1, 1]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        ([9], [1, 2, 3, 4, 5]),
    ],
)
def test_a_name_leads_to_the_next_living_node(unreached: list[int], wanted: list[int]) -> None:
    found = stand_ins([FIVE, ONE, TWO, FOUR, THREE], [NodeId(node) for node in unreached])
    assert list(found.items()) == [(NodeId(node + 1), NodeId(to)) for node, to in enumerate(wanted)]


def test_a_name_is_not_kept_on_a_node_that_is_no_longer_connected() -> None:
    """TWO was restarted a moment ago, and its name leads to THREE, which is killed."""
    reach, now_ms = Reach(), 50_000
    assert reach.judge({TWO: AWAY_MS, THREE: 0}, now_ms, lost=[TWO])
    assert not reach.judge({TWO: 0, THREE: 0}, now_ms + STEP_MS), "it waits for a calm time"
    assert reach.judge({TWO: 0, THREE: STEP_MS}, now_ms + 2 * STEP_MS, lost=[THREE])
    assert reach.away == set()


def test_until_there_is_a_leaders_word_what_is_reached_is_not_away() -> None:
    nodes = [ONE, TWO, THREE]
    reach = Reach()
    reach.judge({ONE: 0, THREE: 0}, 1)
    reach.heard(ONE, [2, 3])
    assert reach.settle(TWO, ONE) == {TWO, THREE}, "the leader's word counts, also of this node"
    assert reach.stand_ins(TWO, ONE, nodes) == dict.fromkeys(nodes, ONE)
    reach.judge({ONE: STEP_MS, THREE: 0}, 2, lost=[ONE])
    for leader in (ONE, NOBODY, THREE):  # it is not seen yet that it is dead, nobody, and one that has said nothing yet
        assert reach.settle(TWO, leader) == set()
    reach.judge({ONE: STEP_MS, THREE: STEP_MS}, 3, lost=[ONE, THREE])
    assert reach.stand_ins(TWO, NOBODY, nodes) == {ONE: ONE, TWO: TWO, THREE: TWO}
    reach.judge({ONE: STEP_MS, THREE: 0}, 4, [TWO, THREE], lost=[ONE])
    assert reach.settle(TWO, NOBODY) == {TWO, THREE}, "who leaves stays away"
    reach.judge({ONE: STEP_MS, THREE: STEP_MS}, 5, [TWO], lost=[ONE, THREE])
    assert reach.stand_ins(TWO, NOBODY, nodes) == {ONE: ONE, TWO: TWO, THREE: TWO}, "unless there is no other"
    reach.judge({ONE: STEP_MS, THREE: 0}, 6, lost=[ONE])
    reach.heard(THREE, [1])
    assert reach.settle(TWO, THREE) == {ONE}
