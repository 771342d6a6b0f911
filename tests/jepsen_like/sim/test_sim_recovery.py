"""A node of a simulated cluster whose state is rotten at a start: a checkpoint takes its place, nothing is missed."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.state.suspect_state import why_suspect
from jepsen_like.sim.machines.machine import DATA
from jepsen_like.sim.scripted import ScriptedWorld
from raftlog.types import NodeId
from statemachine.rows.kv import KVCorruptError

TWO = NodeId(2)


def played(script: str) -> tuple[Any, Any]:
    """(verdict, what node 2 said of its last start)."""
    seen: list[Any] = []

    class Looked(ScriptedWorld):
        def phases(self) -> None:
            super().phases()
            storage = self.machines[TWO].nodes[-1].storage
            seen.append(storage.recovery.status(storage.checkpointer.run))

    return Looked(script).run(), seen[0] if seen else None


@pytest.mark.parametrize("end", ["kill 2", "power 2"])
def test_a_rotten_state_is_replaced_by_a_checkpoint(end: str) -> None:
    script = f"nodes 3\nlead 1\nsend 10\nwait 4\nsend 5\n{end}\nspoil 2\nsend 5\nstart 2\nsettle\n"
    verdict, status = played(script)
    assert not verdict.violations, verdict.violations
    assert (status.state_found, status.state_source) == ("corrupt", "checkpoint")
    assert status.state_set_aside == "trash/000001-state"
    assert not status.replaying


def test_the_second_checkpoint_in_a_row_is_of_the_replaced_state() -> None:
    spoiled = "wait 4\nsend 3\nkill 2\nspoil 2\nstart 2\n"
    script = f"nodes 3\nlead 1\nsend 10\n{spoiled}send 5\n{spoiled}settle\n"
    verdict, status = played(script)
    assert not verdict.violations, verdict.violations
    assert status.state_set_aside == "trash/000002-state"
    assert status.replay_target >= status.replay_index - 20


def test_damage_that_a_running_node_meets_stops_it_and_is_left_to_its_next_start() -> None:
    class Corrupting(ScriptedWorld):
        def do_corrupt(self, name: str) -> None:
            """Reports damage like a read that failed its checksum."""
            self._machine(name).kv.on_corruption(KVCorruptError("a block fails its checksum"))

    stage = Corrupting("nodes 3\nlead 1\nsend 10\nwait 4\nsend 2\ncorrupt 2\nsend 5\nwait 2\nsettle\n")
    verdict = stage.run()
    (stopped,) = [one.what for one in verdict.violations]
    assert stopped == "node 2 stopped: KVCorruptError: a block fails its checksum"
    machine = stage.machines[TWO]
    assert why_suspect(machine.fs, DATA) == "a block fails its checksum"
    assert len(machine.fs.listdir(DATA / "checkpoints")) >= 1
