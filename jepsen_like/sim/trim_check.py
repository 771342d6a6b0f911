"""Retention takes what it may and nothing else: judged from the entries of the log, not from what a node says of it.

- A TRIM begins a segment, and the last segment that it gives up had a reason to go: more log than `bytes_max` after its
  first byte, or all of it older than `keep_ms` (log time), or a disk that fills up.
- After each TRIM the first offset of every queue is that of its first message at or above the position.
- A node's files begin at or below the TRIM that its own older checkpoint knows, and every lease.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jepsen_like.sim.machine import Machine
from jepsen_like.sim.pin_check import PinCheck
from raftlog.types import FLAG_ROLL, Entry, EntryType, LogTail, NodeId
from statemachine import payload
from statemachine.trim import Trim, decode, highest

Report = Callable[[str, str], None]
Queue = tuple[int, int]
"""(topic id, queue id)."""


class _Roll(NamedTuple):
    """Where a segment begins, and the entry before."""

    position: int
    previous: LogTail


class _Known(NamedTuple):
    """What holds after a TRIM."""

    index: int  # type: ignore[assignment]
    position: int
    firsts: dict[Queue, int]
    """The first offset of every queue."""


class TrimCheck:
    """Fed with what nodes apply; `report` takes the checker's name and what is wrong."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0
        """Index of the first entry that no node has applied."""
        self._tail: Entry | None = None
        self._rolls: list[_Roll] = []
        self._positions: dict[Queue, list[int]] = {}
        """Of the messages of each queue, by offset: what any leader ever gave out and the group committed. Those of a
        deleted topic stay, for its id is never used again, and the node that applied this may be far ahead of it."""
        self._firsts: dict[Queue, int] = {}
        self._known: list[_Known] = []
        self.pins = PinCheck(report)
        self._began: dict[NodeId, tuple[object, int]] = {}

    def applied(self, machine: Machine, runs: Sequence[Sequence[Entry]]) -> None:
        """A node has applied these."""
        trimmed = False
        for entry in (entry for run in runs for entry in run):
            if entry.index > self._next:
                self._catch_up(machine, entry.index)
            if entry.index == self._next:
                self._learn(machine, entry)
            trimmed |= entry.type == EntryType.TRIM
        if trimmed:
            self.compare(machine)

    def _catch_up(self, machine: Machine, index: int) -> None:
        """Whoever applied those entries ended in the same call."""
        assert machine.node is not None
        for entry in machine.node.storage.directory.log.read_entries(self._next, index, 1 << 30):
            self._learn(machine, entry)

    def counts(self) -> Iterator[tuple[Queue, int]]:
        """How many messages each queue ever had, as far as anybody has applied."""
        return ((queue, len(positions)) for queue, positions in self._positions.items())

    def compare_pins(self, machine: Machine) -> None:
        """A node that has applied all that anybody has knows what waits."""
        assert machine.node is not None
        if machine.node.state.applied.index == self._next - 1:
            self.pins.compare(machine.node_id, machine.node.state)

    def compare(self, machine: Machine) -> None:
        """The queues of a node begin where they should after the last TRIM that it has applied."""
        node = machine.node
        assert node is not None
        if node.state.applied.index >= self._next:
            return  # a snapshot of a node that was ended before anybody heard what it had applied
        at = bisect_left(self._known, node.state.applied.index + 1, key=lambda known: known[0])
        for (topic_id, queue_id), first in (self._known[at - 1].firsts if at else {}).items():
            found = node.state.min_offset(topic_id, queue_id)
            if found != first and topic_id in node.state.topics_by_id:
                self._report(
                    "retention",
                    f"queue {queue_id} of topic {topic_id} begins at {found} on node {machine.node_id}, "
                    f"the log says {first} as of index {self._known[at - 1].index}",
                )

    def files(self, machine: Machine) -> None:
        """A node may have let go some files."""
        node = machine.node
        if node is None or node.installs.missing_bytes:
            return
        log, state = node.storage.directory.log, node.state
        known = self._began.get(machine.node_id)
        self._began[machine.node_id] = (node, log.first_position)
        if known is None or known[0] is not node or log.first_position <= known[1]:
            return
        marks = [one.manifest.mark.index for one in node.storage.checkpointer.checkpoints.all()]
        used = node.retention.view(machine.node_id).disk_used_percent or 0
        counts = marks[:1] if used > machine.config.retention.disk_force_clean_percent else marks[1:]
        limits = {
            "its TRIM": state.trim_position,
            "the TRIM that its older checkpoint knows": self._position_as_of(counts[0] if counts else -1),
            **{f"the lease of {lease.holder}": lease.position for lease in node.leases.all()},
        }
        for what, position in limits.items():
            if log.first_position > position:
                self._report(
                    "retention",
                    f"node {machine.node_id} let go its log below {log.first_position}, {what} is at {position}",
                )

    def _position_as_of(self, index: int) -> int:
        at = bisect_left(self._known, index + 1, key=lambda known: known[0])
        return self._known[at - 1].position if at else 0

    # --- the model ---------------------------------------------------------------------------------------------------

    def _learn(self, machine: Machine, entry: Entry) -> None:
        self._next = entry.index + 1
        if entry.flags & FLAG_ROLL and self._tail is not None:
            tail = self._tail
            previous = LogTail(tail.term, tail.index, tail.end_position, tail.header_crc, 0, tail.timestamp_ms)
            self._rolls.append(_Roll(entry.position, previous))
        self.pins.learn(entry)
        if entry.type == EntryType.MESSAGES:
            for topic_id, queue_id, base, _, kind, items in payload.decode(entry.payload).iter_runs():
                if kind >= payload.RowKind.SCHEDULED:
                    continue  # in no queue
                positions = self._positions.setdefault((topic_id, queue_id), [])
                if base != len(positions):
                    self._report(
                        "retention",
                        f"entry {entry.index} adds offset {base} to queue {queue_id} of topic {topic_id}, "
                        f"which goes on at {len(positions)}",
                    )
                positions[base:] = [item[0] for item in payload.ITEM.iter_unpack(items)]
        elif entry.type == EntryType.TRIM:
            self._trim(machine, entry)
        self._tail = entry

    def _trim(self, machine: Machine, entry: Entry) -> None:
        trim = decode(entry.payload)
        if trim.position > 0:
            self._justify(machine, entry, trim)
        named = highest(trim.queues)
        for queue, positions in self._positions.items():
            first = max(bisect_left(positions, trim.position), min(named.get(queue, 0), len(positions)))
            self._firsts[queue] = max(first, self._firsts.get(queue, 0))
        position = max(trim.position, self._known[-1].position if self._known else 0)
        self._known.append(_Known(entry.index, position, dict(self._firsts)))

    def _justify(self, machine: Machine, entry: Entry, trim: Trim) -> None:
        position, first_index, reason = trim[:3]
        at = bisect_left(self._rolls, position, key=lambda roll: roll.position)
        what = f"the TRIM at index {entry.index} to position {position}, index {first_index}"
        if at == len(self._rolls) or self._rolls[at].position != position:
            self._report("retention", f"{what}: no segment begins there")
            return
        roll, base = self._rolls[at], self._rolls[at - 1].position if at else 0
        if roll.previous.index + 1 != first_index:
            self._report("retention", f"{what}: the segment there begins with entry {roll.previous.index + 1}")
        rules = machine.config.retention
        large = rules.bytes_max and entry.position - base > rules.bytes_max
        old = rules.keep_ms and roll.previous.timestamp_ms + rules.keep_ms <= entry.timestamp_ms
        if not (large or old or "disk" in reason):  # how full the leader's was then is not known here
            self._report("retention", f"{what}: the segment below it, from {base} on, had no reason to go")
