"""Links of full nodes: acknowledgements alone lost, connections cut without a word, a peer that only hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.types import NodeId

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class Looked(ScriptedWorld):
    """A stage with one command more: `look` calls what the test gives."""

    def __init__(self, script: str, look: Callable[[ScriptedWorld], Any]) -> None:
        super().__init__(script)
        self.seen: list[Any] = []
        self._look = look

    def do_look(self) -> None:
        self.seen.append(self._look(self))


def looked(script: str, look: Callable[[ScriptedWorld], Any]) -> list[Any]:
    stage = Looked(script, look)
    verdict = stage.run()
    assert not verdict.violations, verdict.violations
    return stage.seen


def node(stage: ScriptedWorld, number: NodeId) -> Any:
    found = stage.machines[number].node
    assert found is not None
    return found


def test_entries_whose_acknowledgements_were_lost_are_taken_once() -> None:
    """Node 2 writes all it is sent and its leader does not hear of it: pushed again, it has each entry once."""

    def look(stage: ScriptedWorld) -> tuple[int, int, int]:
        leader = node(stage, ONE)
        (progress,) = [peer for peer in leader.raw.status().peers if peer.node_id == TWO]
        return progress.match_index, node(stage, TWO).raw.persisted_index, leader.raw.last_index

    script = "nodes 3\nlead 1\nsend 5\nwait 0.5\nlook\ncut 2->1\nsend 20\nwait 2\nlook\nheal\nwait 3\nlook\nsettle\n"
    before, during, after = looked(script, look)
    assert before[0] == before[1] == before[2]
    assert during[0] == before[0], "no acknowledgement came through"
    assert during[1] >= during[2] - 1 > before[2] + 1, "and all the entries did"
    assert after[0] >= during[2], "known again without being written again"


def test_the_link_says_that_acknowledgements_stay_out() -> None:
    def look(stage: ScriptedWorld) -> tuple[str, str]:
        views = {view.peer: view for view in node(stage, ONE).peers.links.view()}
        return views[2].state, views[3].state

    script = "nodes 3\nlead 1\nsend 2\nwait 1\nlook\ncut 2->1\nsend 20\nwait 4\nlook\nheal\nwait 3\nlook\nsettle\n"
    assert looked(script, look) == [("TRANSFER", "TRANSFER"), ("SUSPEND", "TRANSFER"), ("TRANSFER", "TRANSFER")]


def test_links_cut_without_a_word_are_given_up_and_come_back() -> None:
    """Longer than housekeeping: every connection of node 3 is another one afterwards, and none is left over."""

    def look(stage: ScriptedWorld) -> tuple[str, list[int]]:
        leader = node(stage, ONE)
        states = {view.peer: view.state for view in leader.peers.links.view()}
        return states[3], sorted(id(link) for (to, _), link in leader.peers.transport.links.items() if to == THREE)

    script = "nodes 3\nlead 1\nsend 2\nwait 1\nlook\ncut 3\nsend 3\nwait 45\nlook\nheal\nwait 5\nlook\nsend 3\nsettle\n"
    (first, before), (state, during), (last, after) = looked(script, look)
    assert first == last == "TRANSFER"
    assert state != "TRANSFER"
    assert not set(before) & set(during)
    assert len(after) == 2
    assert len(before) == 2


# --- whose names in routes lead elsewhere: the leader's word, on every node ---

NOBODY_AWAY: dict[str, list[int]] = {"1": [], "2": [], "3": []}


def unreached(stage: ScriptedWorld) -> dict[str, list[int]]:
    """Returns the nodes that each running node cannot reach, by which it answers routes."""
    return {
        str(number): sorted(machine.node.peers.links.unreached())
        for number, machine in sorted(stage.machines.items())
        if machine.node is not None
    }


def test_the_name_of_a_dead_follower_moves_within_two_seconds_and_comes_back() -> None:
    script = "nodes 3\nlead 1\nsend 2\nwait 4\nlook\nkill 3\nwait 0.7\nlook\nwait 1.3\nlook\n"
    before, early, moved, back = looked(script + "start 3\nwait 5\nlook\nsettle\n", unreached)
    assert before == NOBODY_AWAY
    assert early == {"1": [], "2": []}
    assert moved == {"1": [3], "2": [3]}
    assert back == NOBODY_AWAY


def test_the_name_of_a_dead_leader_moves_by_the_word_of_the_next_one() -> None:
    script = "nodes 3\nlead 1\nsend 2\nwait 4\nkill 1\nwait 4\nlook\nstart 1\nwait 6\nlook\nsettle\n"
    assert looked(script, unreached) == [{"2": [1], "3": [1]}, NOBODY_AWAY]


def test_a_node_that_is_cut_off_answers_by_the_last_word_it_heard() -> None:
    """It cannot know: the others know that it is not reached, and its own view of them counts for nobody."""
    script = "nodes 3\nlead 1\nsend 2\nwait 4\ncut 3\nwait 4\nlook\nheal\nwait 8\nlook\nsettle\n"
    assert looked(script, unreached) == [{"1": [3], "2": [3], "3": []}, NOBODY_AWAY]


def test_without_a_leader_the_last_word_stays() -> None:
    script = "nodes 3\nlead 1\nsend 2\nwait 4\nkill 3\nwait 3\nlook\nkill 1\nwait 4\nlook\n"
    before, alone, after = looked(script + "start 1 3\nwait 8\nlook\nsettle\n", unreached)
    assert before == {"1": [3], "2": [3]}
    assert alone == {"2": [3]}
    assert after == NOBODY_AWAY


class Routed(ScriptedWorld):
    """A stage that looks all the time at the aliases in the routes of each running node."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.astray: list[str] = []
        self._watched = False

    def do_watch(self) -> None:
        """From now on, looks whether the name of a node that runs leads to one that does not. After a node was started
        or killed, others have `NOTICED_S` to see that."""
        self._watched = True
        self._look_again({}, 0.0)

    def _look_again(self, before: dict[NodeId, bool], since_s: float) -> None:
        up = {number: machine.node is not None for number, machine in sorted(self.machines.items())}
        since_s = since_s if up == before else self.loop.now
        if self.loop.now - since_s >= NOTICED_S:
            for number, machine in sorted(self.machines.items()):
                leads = machine.node.peers.links.stand_ins([*self.machines]) if machine.node is not None else {}
                self.astray += [
                    f"{self.loop.now:.2f} s: by node {number}, the name of node {name} leads to node {to}"
                    for name, to in leads.items()
                    if up[name] and not up[to]
                ]
        self.loop.call_outside(0.02, lambda: self._look_again(up, since_s))


NOTICED_S = 0.45
"""Seconds in which a node sees that another one was started or killed: two looks at its links."""


def astray(script: str) -> list[str]:
    stage = Routed(script)
    verdict = stage.run()
    assert not verdict.violations, verdict.violations
    return stage.astray


@pytest.mark.parametrize("back_s", ["0.5", "1", "2"])
@pytest.mark.parametrize(("young", "leader"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_a_living_nodes_name_never_leads_to_a_leader_killed_soon_after_a_restart(
    young: int, leader: int, back_s: str
) -> None:
    """The one that was restarted still counts as away, and its name leads to another node: that one is killed."""
    killed = f"kill {young}\nwait 2\nstart {young}\nwait {back_s}\nkill {leader}\n"
    assert (
        astray(f"nodes 3\nlead {leader}\nsend 2\nwait 4\nwatch\n{killed}wait 4\nstart {leader}\nwait 5\nsettle\n") == []
    )


def test_without_a_quorum_the_name_of_the_one_that_lives_leads_to_it() -> None:
    """The last word was that it was away, so its name led to a node that is dead: its clients were told that nothing
    listens there, and not that there is no leader (14)."""
    killed = "kill 2\nwait 2\nstart 2\nwait 0.6\nkill 1 3\n"
    assert astray(f"nodes 3\nlead 1\nsend 2\nwait 4\nwatch\n{killed}wait 4\nstart 1 3\nwait 8\nsettle\n") == []


def test_the_name_of_a_dead_node_leads_to_one_that_lives_until_there_is_a_leader() -> None:
    """Node 3 is dead, and its name led to node 1, which dies too."""
    script = "nodes 3\nlead 1\nsend 2\nwait 4\nkill 3\nwait 3\nlook\nkill 1\nwait 4\nlook\nstart 1 3\nwait 8\nsettle\n"
    seen = looked(script, lambda stage: dict(node(stage, TWO).peers.links.stand_ins([ONE, TWO, THREE])))
    assert seen == [{ONE: ONE, TWO: TWO, THREE: ONE}, {ONE: ONE, TWO: TWO, THREE: TWO}]
