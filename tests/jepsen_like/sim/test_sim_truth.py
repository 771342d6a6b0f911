"""A second group of brokers beside the simulated one: the product passes, and what is broken is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jepsen_like.sim.machines.loop import Process
from jepsen_like.sim.options import DRAINS_FROM, GROUPS_FROM, draw
from jepsen_like.sim.scripted import ScriptedWorld, play
from statemachine.cluster_wide.broker_groups import BrokerGroup, BrokerGroups
from statemachine.cluster_wide.truth_journal import TruthJournal
from statemachine.truth import Truth

SCRIPT = "nodes 3 groups=1\nlead 1\ngroups 4\nkill 1\nwait 2\nstart 1\nsettle\n"


def found(script: str) -> list[str]:
    return [violation.checker for violation in play(script).violations]


def test_the_truth_is_copied_across_a_killed_leader() -> None:
    assert found(SCRIPT) == []


def test_a_quarter_of_the_seeds_have_a_second_group() -> None:
    assert not any(draw(seed).groups for seed in range(GROUPS_FROM - 20, GROUPS_FROM))
    assert 10 < sum(draw(seed).groups for seed in range(GROUPS_FROM, GROUPS_FROM + 100)) < 40


def test_half_of_the_seeds_with_a_second_group_and_no_nodes_of_it_have_drains() -> None:
    assert not any(draw(seed).drains for seed in range(DRAINS_FROM - 40, DRAINS_FROM))
    drawn = [draw(seed) for seed in range(DRAINS_FROM, DRAINS_FROM + 200)]
    assert all(options.groups and not options.second for options in drawn if options.drains)
    assert 10 < sum(options.drains for options in drawn) < 40


class Watched(ScriptedWorld):
    """Notes what nodes know of the second group after each event: that it takes messages, or drains."""

    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.known: list[bool] = []

    def phases(self) -> None:
        def look(process: Process) -> None:
            self.monitor.after_event(process)
            for machine in self.machines.values():
                if machine.process is process and machine.node is not None:
                    self.look(machine.node.state[BrokerGroups].by_number.get(2))

        self.loop.after_event = look
        super().phases()

    def look(self, group: BrokerGroup | None) -> None:
        if group is not None and self.known[-1:] != [group.is_active]:
            self.known.append(group.is_active)


def test_drains_are_copied_across_a_killed_leader() -> None:
    stage = Watched(SCRIPT.replace("groups=1", "groups=1 drains=1"))
    assert not stage.run().violations
    assert stage.known[:3] == [True, False, True], "the script drains, and cancels"


def forgets_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TruthJournal, "end", TruthJournal.drop)


def keeps_what_ended(patch: pytest.MonkeyPatch) -> None:
    end = TruthJournal.end

    def once(self: Any, stage: Any, kind: Any, name: Any) -> None:
        if (kind, name) not in self._ends:
            end(self, stage, kind, name)

    patch.setattr(TruthJournal, "end", once)


def skips_a_page(patch: pytest.MonkeyPatch) -> None:
    after = Truth.after

    def skipping(self: Any, version: int, bytes_max: int) -> Any:
        page = after(self, version, bytes_max)
        return page._replace(rows=page.rows[1:])

    patch.setattr(Truth, "after", skipping)


@pytest.mark.parametrize("breaks", [forgets_ends, keeps_what_ended, skips_a_page])
def test_what_is_broken_is_found(breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch)
    assert found(SCRIPT)[0] == "truth"
