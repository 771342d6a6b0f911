"""Witnesses of the bugs in opening a node (see witnesses.py)."""

from __future__ import annotations

from jepsen_like.sim.scripted import Stage
from raftlog.types import NodeId


def witness_S10() -> None:
    """Entries that a state made from a checkpoint lacks are applied again."""
    applied: list[tuple[int, int]] = []

    class Looked(Stage):
        def _phases(self) -> None:
            super()._phases()
            storage = self.machines[NodeId(2)].nodes[-1].storage
            applied.append(
                (storage.state.applied.index, storage.recovery.status(storage.checkpointer.run).replay_target)
            )

    sent = "send 10\nwait 4\nsend 5\nwait 0.8\nsend 5\nwait 0.8\n"
    Looked(f"nodes 3\nlead 1\n{sent}kill 2\nspoil 2\nstart 2\nwait 3\n", black_box=True).run()
    ((index, target),) = applied
    assert index >= target
