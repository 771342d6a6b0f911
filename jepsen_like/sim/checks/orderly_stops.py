"""Checks what an orderly stop (after SIGTERM, or for a restart within the process) promises to the node's next start.

Whatever happens to the machine between the stop and the start, including a loss of power, the next start finds the
whole log and all rows, and has nothing to repair. Other checks judge what a stop promises to clients: no send that the
stopping node took is answered as failed and yet is in the log (checker `log`), and the node's successor as leader has
everything (`handovers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cluster.node.node import Node
from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.machines.machine import Machine
from raftlog.types import NodeId


class StoppedNode(NamedTuple):
    """The end of a node's log, and the index that its rows reflected, when the node was closed."""

    last_index: int
    header_crc: int
    """Header checksum of the last entry."""
    applied_index: int


class OrderlyStops:
    """Compares what each node finds at a start with what it left at an orderly stop. The monitor tells it of closed,
    ended and started nodes. Reports under the name `stop`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._left: dict[NodeId, StoppedNode] = {}

    def closed(self, machine: Machine, node: Node) -> None:
        """Records what a node leaves on disk when it is closed, before its process ends, and reports rows that are not
        synced. With a full or failed disk no orderly stop is possible, so nothing is checked or recorded."""
        self._left.pop(machine.node_id, None)
        if node.failure is not None or machine.fs.failed or machine.fs.space_left < 1 << 30:
            return
        if machine.kv.unsynced:
            what = f"node {machine.node_id} stopped in order and left {machine.kv.unsynced} batches of rows unsynced"
            self._report("stop", what)
        tail = node.storage.directory.log.tail
        self._left[machine.node_id] = StoppedNode(tail.index, tail.header_crc, node.state.applied.index)

    def ended(self, machine: Machine, how: str) -> None:
        """Records that a process has ended. If it did not end by an orderly stop, its node's next start is not judged:
        a start that was interrupted may have begun repairs."""
        if how != "stopped":
            self._left.pop(machine.node_id, None)

    def started(self, machine: Machine) -> None:
        """Checks a node that has recovered from its disk after an orderly stop. A node that was installing a snapshot,
        or on whose disk a bit has flipped, is not checked."""
        left = self._left.pop(machine.node_id, None)
        if left is None or machine.was_installing or machine.rotten:
            return
        for what in found_wrong(machine, left):
            self._report("stop", f"node {machine.node_id} was stopped in order, and {what}")


def found_wrong(machine: Machine, left: StoppedNode) -> Iterator[str]:
    """Yields a line for everything that the node's start found and that must not be there after an orderly stop."""
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
