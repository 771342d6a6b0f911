"""Witnesses of the bugs in installs, and in what clients see of nodes that come and go (see witnesses.py)."""

from __future__ import annotations

from typing import Any

from cluster.state.opening_cases import Facts, StateCase, classify
from jepsen_like.sim.scripted import Stage
from raftlog.types import NodeId
from statemachine.broker_state import AppliedMark

SMALL = "nodes 3 segment_size=16384 checkpoint_every_ms=300 retained_bytes=65536 fetch_bytes_per_second=10000"
SMALL_BUT_SLOW = "nodes 3 segment_size=16384 checkpoint_every_ms=1000 retained_bytes=65536"
BURST = "send 40 body=2000\nwait 2\n"
AWAY = "lead 1\nsend 5\nkill 3\nsend 40 body=2000\nwait 1\nsend 40 body=2000\nwait 1\nsend 3\nwait 1\nsend 3\nwait 1\n"


def played(script: str, looks: Any = lambda stage: None) -> Any:
    """Returns the answer of `looks` about the stage after the last line; nothing is judged but what clients see."""
    seen: list[Any] = []

    class Looked(Stage):
        def _phases(self) -> None:
            super()._phases()
            seen.append(looks(self))

    verdict = Looked(script, black_box=True).run()
    assert not verdict.violations, verdict.violations
    return seen[0]


def witness_X01() -> None:
    """Nobody campaigns who lacks log that may be asked for."""

    def may_campaign(stage: Stage) -> tuple[bool, bool]:
        node = stage.machines[NodeId(3)].node
        assert node is not None
        return node.raw.may_campaign, node.installs.missing_bytes > 0

    assert played(f"{SMALL}\n{AWAY}start 3\ncopying 3 backfill\nwait 0.1\n", may_campaign) == (False, True)


def witness_X02() -> None:
    """A node without a state that takes a snapshot of a later term starts, whether it voted in its own or not."""

    def runs(stage: Stage) -> bool:
        return stage.machines[NodeId(3)].node is not None

    away = f"lead 2\n{BURST}lead 1\n{BURST}send 3\nwait 2\nsend 3\nwait 2\n"
    own = "kill 3\nlead 1\nstart 3\nwait 0.6\nkill 3\n"  # it hears of its term from the leader, and has no checkpoint
    assert played(f"{SMALL_BUT_SLOW}\n{own}{away}spoil 3\nstart 3\nwait 2\n", runs)


def witness_X03() -> None:
    """After an install the state is that of the checkpoint."""
    facts = Facts(50, 90, mark=AppliedMark(1, 20, 2000, 0, 7), installed=True)
    assert classify(facts) is StateCase.INSTALLED


def witness_X04() -> None:
    """A consumer that knows other nodes gets into its group at a leader that joined since."""

    def got(stage: Stage) -> int:
        return len(stage.reader.ids)

    assert played("nodes 3\nlead 1\nsend 3\nreader\nwait 1\njoin 4\nlead 4\nsend 150\nwait 20\n", got) == 153


def witness_X05() -> None:
    """The oldest message comes from a node that does not have it yet."""
    played(f"{SMALL}\n{AWAY}start 3\ncopying 3 backfill\nwait 0.1\noldest 3\n")
