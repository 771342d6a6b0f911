"""Checks removals from rows and reads: deleted data is removed slice by slice, and no reader sees it during that time
(docs/adr/0082).

- No slice removes more rows than it may, however much there is to remove.
- While a node removes something, it shows no message of a deleted topic, and no group's offset, lock or reset in such a
  topic. The queues of other topics end where they did. Once a staged write is committed, no attempt at it is open.
- A removal ends: a leader that takes writes continues it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.checks.standstill import Standstill
from statemachine.delivery.staged_writes import AttemptState
from statemachine.rows import meta_keys
from statemachine.rows.keys import Queue
from statemachine.rows.kv import CQ, DEDUP, LOCKS, META, OFFSETS, RESETS, TRANS

if TYPE_CHECKING:
    from jepsen_like.sim.machines.machine import Machine
    from statemachine.broker_state import BrokerState
    from statemachine.rows.kv import Batch

CHECKER = "removals"
PATIENCE_S = 5.0
"""Longest virtual time in seconds that a leader may take until its next slice."""
REMOVED = frozenset((CQ, DEDUP, OFFSETS, LOCKS, RESETS, TRANS))
"""Row families whose removed rows are counted. The index is not among them: an entry that begins a segment also closes
a bucket of the index, which changes its rows."""
ROWS_PER_ROW = 2
"""Most rows that are removed for one row that a slice counts: the removal of a unique-key row also removes the row by
which it is found by time."""


class RemovalCheck:
    """Checks the slices that nodes write and the states that they have while they remove rows. `report` takes the
    checker's name and what is wrong."""

    def __init__(self, report: Report, rows_max: int) -> None:
        """`rows_max`: number of rows that one slice may remove."""
        self._report = report
        self._rows_max = rows_max * ROWS_PER_ROW
        self._standstill = Standstill(PATIENCE_S)
        self._slices = 0
        """Number of slices that nodes have written. Each node counts."""
        self._removing: set[int] = set()
        """Nodes that still had something to remove after their last apply."""

    def wrote(self, batch: Batch) -> None:
        """Checks a batch of rows that a node is about to write."""
        if not any(family == META and key.startswith(b"removal") for family, key, _, _ in batch.ops):
            return
        if any(
            family == META and key.startswith(meta_keys.REMOVAL_PREFIX) and value for family, key, value, _ in batch.ops
        ):
            return  # this batch begins a removal, and may contain other changes
        self._slices += 1
        gone = sum([value is None for family, _, value, _ in batch.ops if family in REMOVED])
        if gone > self._rows_max:
            self._report(CHECKER, f"a slice removed {gone} rows, {self._rows_max} are allowed")

    def applied(self, machine: Machine, counts: Iterable[tuple[Queue, int]], *, newest: bool) -> None:
        """Checks a node that has applied entries. `counts`: how many messages each queue ever had. `newest`: True if no
        node has applied more."""
        assert machine.node is not None
        state, node = machine.node.state, machine.node_id
        if not state.removing and node not in self._removing:
            return
        if state.removing:
            self._removing.add(node)
        else:
            self._removing.discard(node)
        known = state.topics_by_id
        for queue, count in counts:
            if queue[0] not in known:
                if state.max_offset(*queue) or state.fetch(*queue, 0, 1):
                    self._report(CHECKER, f"node {node} shows messages of topic id {queue[0]}, which is deleted")
                    return
            elif newest and (found := state.max_offset(*queue)) != count:
                what = (
                    f"queue {queue[1]} of topic id {queue[0]} ends at {found} on node {node}, it had {count} messages"
                )
                self._report(CHECKER, what)
                return
        self._attempts(node, state)
        for topic_id in _seen(state):
            if topic_id not in known:
                what = f"node {node} shows what groups had of topic id {topic_id}, which is deleted"
                self._report(CHECKER, what)
                return

    def _attempts(self, node: int, state: BrokerState) -> None:
        for attempt in state.writes.attempts():
            newest = state.writes.committed(attempt.name)
            if attempt.state is AttemptState.OPEN and newest is not None and attempt.write <= newest.write:
                what = f"attempt {attempt.number} at write {attempt.write} of {attempt.name!r} is open on node {node}"
                self._report(CHECKER, f"{what}, and write {newest.write} is committed")
                return

    def goes_on(self, machine: Machine, now_s: float) -> None:
        """Reports a leader that takes writes and has rows to remove, but has removed no slice for PATIENCE_S seconds.
        The monitor calls this after each drain of the retention lane.
        """
        node = machine.node
        if node is None or not node.state.removing or not node.serving.proposals.open:
            return
        if self._standstill.is_reached(node, (machine.node_id, self._slices), now_s):
            self._report(CHECKER, f"what is to be removed stands still on node {machine.node_id}, which leads")


def _seen(state: BrokerState) -> Iterable[int]:
    for group in state.groups:
        yield from [topic_id for topic_id, _, _ in state.offsets_of_group(group)]
        yield from [topic_id for topic_id, _ in state.locks_of_group(group)]
        yield from [topic_id for topic_id, _ in state.resets_of_group(group)]
