"""The simulator's rules for an orderly stop, each broken once; and which leader took over from which."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.state.checkpointer import Checkpointer
from jepsen_like.sim.checks.handovers import Reigns
from jepsen_like.sim.scripted import play
from raftlog.core import transfer
from raftlog.core.raft import Raft
from raftlog.messages import TimeoutNow
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import NOBODY, EntryId, NodeId, Role

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
STOP = "nodes 3\nlead 1\nsend 5\nstop 1\nwait 2\nsettle\n"


def never_clean(patch: pytest.MonkeyPatch) -> None:
    """The log is closed as after a failure."""
    close = SegmentedLog.close
    patch.setattr(SegmentedLog, "close", lambda log, clean: close(log, False))


def rows_not_synced(patch: pytest.MonkeyPatch) -> None:
    """The database is closed without its last sync."""
    patch.setattr(Checkpointer, "stop", lambda checkpointer: None)


@pytest.mark.parametrize("breaks", [never_clean, rows_not_synced])
def test_a_stop_that_leaves_work_to_the_next_start_is_found(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not play(STOP).violations
    breaks(monkeypatch)
    assert play(STOP).violations[0].checker == "stop"


def test_a_hand_over_to_a_follower_that_lags_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(raft: Raft) -> None:
        if raft.transferee != NOBODY:
            raft.send(TimeoutNow(raft.id, raft.transferee, raft.term))

    script = (
        "nodes 3 election_ticks=24\nlead 1\nsend 2\nhalf-open 1->2 bulk\nhalf-open 1->3 bulk\nask 1 3 later\n"
        "wait 0.02\nstop 1\nwait 3\nsettle\n"
    )
    assert not play(script).violations
    monkeypatch.setattr(transfer, "hand_over_if_caught_up", at_once)
    assert play(script).violations[0].checker == "handover"


# --- reigns, by hand ------------------------------------------------------------------------------------------------


def raft(role: Role, term: int, last: int, *, to: NodeId = NOBODY) -> Any:
    tail = SimpleNamespace(id=EntryId(1, last), index=last)
    log = SimpleNamespace(tail=tail, matches=lambda entry: entry.index <= last)
    return SimpleNamespace(role=role, term=term, transferee=to, log=log)


class Told:
    """Reigns over three nodes, and what they report."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.now_s = 0.0
        self.reigns = Reigns(lambda checker, what: self.found.append(checker))

    def turn(self, node: NodeId, *what: Any, **more: Any) -> Told:
        self.now_s += 1
        self.reigns.turn(node, raft(*what, **more), self.now_s)
        return self

    def elected(self, node: NodeId, term: int, last: int, *, told: bool) -> Told:
        self.turn(node, Role.FOLLOWER, term - 1, last)
        if not told:
            self.turn(node, Role.PRE_CANDIDATE, term - 1, last)
        return self.turn(node, Role.CANDIDATE, term, last).turn(node, Role.LEADER, term, last)


def test_who_was_told_to_take_over_continues_the_reign() -> None:
    told = Told().elected(ONE, 1, 5, told=False).turn(ONE, Role.LEADER, 1, 5, to=TWO).elected(TWO, 2, 5, told=True)
    assert [reign.house for reign in told.reigns.all] == [1, 1]
    assert told.reigns.handovers == 1
    assert not told.found


def test_who_takes_over_without_all_of_the_log_is_found() -> None:
    told = Told().elected(ONE, 1, 5, told=False).turn(ONE, Role.LEADER, 1, 5, to=TWO).elected(TWO, 2, 4, told=True)
    assert told.found == ["handover"]


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(lambda told: told.elected(TWO, 2, 4, told=False), id="an election of its own"),
        pytest.param(lambda told: told.elected(THREE, 2, 4, told=False), id="somebody else"),
        pytest.param(lambda told: told.turn(ONE, Role.LEADER, 1, 6).elected(TWO, 2, 5, told=True), id="too late"),
        pytest.param(
            lambda told: (
                told.turn(ONE, Role.LEADER, 1, 6).turn(ONE, Role.LEADER, 1, 6, to=TWO).elected(TWO, 2, 5, told=True)
            ),
            id="the word of a first time arrives in a second one",
        ),
    ],
)
def test_who_was_not_told_begins_a_reign_of_its_own(story: Callable[[Told], Told]) -> None:
    told = story(Told().elected(ONE, 1, 5, told=False).turn(ONE, Role.LEADER, 1, 5, to=TWO))
    assert [reign.house for reign in told.reigns.all] == [1, 2]
    assert not told.found


def test_a_reign_ends_with_its_term_its_role_or_its_process() -> None:
    told = Told().elected(ONE, 1, 5, told=False)
    began_s = told.now_s
    assert told.reigns.houses(began_s + 9, began_s + 9) == {1}, "as long as its process thinks so"
    told.reigns.gone(ONE, began_s + 1)
    told.elected(ONE, 2, 5, told=False).turn(ONE, Role.FOLLOWER, 3, 5)
    assert told.reigns.houses(0, began_s) == {1}
    assert told.reigns.houses(told.now_s + 1, 99) == set()
