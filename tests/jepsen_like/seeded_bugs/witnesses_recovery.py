"""Witnesses of the bugs in opening a node (see witnesses.py).

    python witnesses_recovery.py ROOT NAME    runs one against the packages under ROOT: exit code 0 holds, 1 fails
"""

from __future__ import annotations

import sys
from pathlib import Path

import raftlog
from jepsen_like.sim.stage import Stage
from raftlog.errors import RaftLogError
from raftlog.types import NodeId
from statemachine.kv import KVError


def witness_S10() -> None:
    """What the state lacks after it was made from a checkpoint is applied again."""
    applied: list[tuple[int, int]] = []

    class Looked(Stage):
        def _phases(self) -> None:
            super()._phases()
            parts = self.machines[NodeId(2)].nodes[-1].parts
            applied.append((parts.state.applied.index, parts.recovery.status(parts.keeper.run).replay_target))

    sent = "send 10\nwait 4\nsend 5\nwait 0.8\nsend 5\nwait 0.8\n"
    Looked(f"nodes 3\nlead 1\n{sent}kill 2\nspoil 2\nstart 2\nwait 3\n", black_box=True).run()
    ((index, target),) = applied
    assert index >= target


def main(root: str, name: str) -> int:
    if not Path(raftlog.__file__).is_relative_to(Path(root).resolve()):
        sys.exit(f"raftlog comes from {raftlog.__file__}")
    try:
        globals()[name]()
    except (AssertionError, RaftLogError, KVError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
