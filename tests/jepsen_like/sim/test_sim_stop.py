"""Orderly stops of full nodes under load: leadership is handed over, nothing is lost, who is cut off ends as well."""

from __future__ import annotations

import pytest

from jepsen_like.sim.scripted import ScriptedWorld, play
from raftlog.core.raw_node import RawNode
from raftlog.types import NodeId, Role


class Watched(ScriptedWorld):
    """Notes who leads, and in which term, when the script says `look`."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.leaders: list[tuple[NodeId, int]] = []
        self.cores: list[RawNode] = []
        """The cores of every leader that was seen."""

    def do_look(self) -> None:
        for machine in self.machines.values():
            node = machine.node
            if machine.up and node is not None and node.raw.role is Role.LEADER:
                self.leaders.append((machine.node_id, node.raw.term))
                self.cores.append(node.raw)


@pytest.mark.parametrize("inline", ["0.0", "1.0"])
def test_a_leader_that_stops_under_load_costs_one_term_and_no_message(inline: str) -> None:
    stage = Watched(f"nodes 3 apply_inline={inline}\nlead 1\nload 1\nlook\nstop 1\nwait 0.2\nlook\nload 1\nsettle\n")
    verdict = stage.run()
    assert not verdict.violations, verdict.violations
    assert verdict.acked > 50
    assert not verdict.unknown
    (first, term), (second, next_term) = stage.leaders
    assert first == 1
    assert second != 1
    assert next_term == term + 1, "no election had to fail"
    assert stage.cores[0].role is Role.FOLLOWER, "it handed over before it went"


@pytest.mark.parametrize(
    "script",
    [
        "nodes 3\nlead 1\nload 0.5\nstop 2\nload 0.5\nsettle\n",
        "nodes 3\nlead 1\nload 0.5\nstop 1 2 3\nwait 3\nload 0.5\nsettle\n",
        "nodes 3\nlead 1\nload 0.5\ncut 1\nstop 1\nload 1\nheal\nsettle\n",
        "nodes 3\nlead 1\nload 0.5\nslow 2 20\nslow 3 20\nstop 1\nload 0.5\nsettle\n",
        "nodes 3\nlead 1\nload 0.5\nstop 1\nwait 0.01\nkill 2\nload 1\nsettle\n",
        "nodes 1\nlead 1\nload 0.5\nstop 1\nload 1\nsettle\n",
    ],
    ids=["a follower", "all at once", "cut off", "slow disks", "the next one dies", "alone"],
)
def test_nothing_is_lost_whatever_stands_in_the_way_of_a_stop(script: str) -> None:
    verdict = play(script)
    assert not verdict.violations, verdict.violations
    assert verdict.acked
