"""Orderly stops (SIGTERM; a restart in the process is one too): what such a stop promises to the next start.

Whatever happens to the machine between the two, power included, the next start finds all that was there, log and
rows, and has nothing to repair. What a stop promises to clients is judged where all answers are: no send that the
stopping node took is said to have failed and stands in the log (`log`), and who takes over has everything (`reigns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cluster.node.node import Node
from jepsen_like.sim.machines.machine import Machine
from raftlog.types import NodeId

Report = Callable[[str, str], None]
"""(checker, what)"""


class Left(NamedTuple):
    """The log and the rows of a node when it was closed."""

    last_index: int
    header_crc: int
    """Header checksum of the last entry."""
    applied_index: int


class OrderlyStops:
    """Fed by the monitor; reports under the name `stop`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._left: dict[NodeId, Left] = {}

    def closed(self, machine: Machine, node: Node) -> None:
        """A node is closed, and its process not yet gone. A full or failed disk is in the way of an orderly stop."""
        self._left.pop(machine.node_id, None)
        if node.failure is not None or machine.fs.failed or machine.fs.space_left < 1 << 30:
            return
        if machine.kv.unsynced:
            what = f"node {machine.node_id} stopped in order and left {machine.kv.unsynced} batches of rows unsynced"
            self._report("stop", what)
        tail = node.storage.directory.log.tail
        self._left[machine.node_id] = Left(tail.index, tail.header_crc, node.state.applied.index)

    def ended(self, machine: Machine, how: str) -> None:
        """A process is gone; whatever a start that was cut short has begun is not judged."""
        if how != "stopped":
            self._left.pop(machine.node_id, None)

    def started(self, machine: Machine) -> None:
        """A node has recovered from its disk."""
        left = self._left.pop(machine.node_id, None)
        if left is None or machine.was_installing or machine.rotten:
            return
        for what in found_wrong(machine, left):
            self._report("stop", f"node {machine.node_id} was stopped in order, and {what}")


def found_wrong(machine: Machine, left: Left) -> Iterator[str]:
    """Yields what the node's next start should not have met."""
    node = machine.node
    assert node is not None
    log = node.storage.directory.log
    report = log.report
    if (log.tail.index, log.tail.header_crc) != (left.last_index, left.header_crc):
        yield f"its log ended at index {left.last_index} and now at {log.tail.index}, or with another entry"
    if node.state.applied.index != left.applied_index:
        yield f"its rows were those of index {left.applied_index} and are now those of {node.state.applied.index}"
    if not report.clean or report.torn_bytes_cut or report.set_aside or report.damaged:
        yield f"its next start had to look for damage: {'; '.join(report.reasons)[:200]}"
