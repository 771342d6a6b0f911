"""Checks, from the entries of the log and not from what a node reports, that retention removes what it may and nothing
else.

- The position of a TRIM is the beginning of a segment. The last segment below it had a reason to go: more log than
  `bytes_max` after its first byte, or all of it older than `keep_ms` (log time), or a disk that fills up. A segment
  that only the tier still has goes because the tier has too many bytes.
- After each TRIM the first offset of every queue is that of its first message at or above the position. While a TRIM is
  carried out in slices (a sweep), a queue may begin anywhere from its former first offset to that one. Once a node's
  sweep is over, its queues begin where the TRIM says.
- No node carries out an EVICT to a position above what the log says is VERIFIED in the tier. An EVICT that is carried
  out moves no queue's first offset in the tier.
- A sweep ends: a leader that takes writes goes on with it.
- A node's files begin at or below the TRIM position in the older of its checkpoints (the newer one if the disk is
  nearly full), and at or below every lease.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jepsen_like.sim.callbacks import Report
from jepsen_like.sim.checks.retention_pin_check import PinCheck
from jepsen_like.sim.checks.standstill import Standstill
from jepsen_like.sim.machines.machine import Machine
from raftlog.types import FLAG_ROLL, Entry, EntryType, LogTail, NodeId
from statemachine import payload
from statemachine.command_table import in_entry
from statemachine.rows.keys import Queue
from statemachine.tier import MoveSegment, TierState
from statemachine.trim import RemoveRows, Slice, Trim, decode, highest

SWEEP_PATIENCE_S = 5.0
"""Longest virtual time in seconds that a leader may take until its next slice of a sweep."""


class _Roll(NamedTuple):
    """The byte position at which a segment begins, and the index and term of the entry before it."""

    position: int
    previous: LogTail


class _Known(NamedTuple):
    """The trim position and first offsets that hold after a TRIM, from the entry with this index on."""

    index: int  # type: ignore[assignment]
    position: int
    firsts: dict[Queue, int]
    """Queue -> its first offset."""


class _Cut(NamedTuple):
    """The trim position and first offsets that hold once a sweep is over; until then no queue may begin above them."""

    index: int  # type: ignore[assignment]
    position: int
    firsts: dict[Queue, int]


class _Tiered(NamedTuple):
    """A segment in the tier as the log's commands describe it: end position, state, term and bytes stored."""

    end: int
    state: int
    term: int
    stored_bytes: int = 0


class TrimCheck:
    """Keeps its own model of the log, its queues and its trim position, from the entries that nodes apply, and checks
    TRIMs and nodes against it. `report` takes the checker's name and what is wrong."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0
        """Index of the first entry that no node has applied."""
        self._tail: Entry | None = None
        self._rolls: list[_Roll] = []
        self._positions: dict[Queue, list[int]] = {}
        """Queue -> byte positions of all messages that it ever had, by offset. The queues of a deleted topic stay: the
        topic's id is never used again, and the node that applied the deletion may be far ahead of another."""
        self._firsts: dict[Queue, int] = {}
        self._kept: dict[Queue, int] = {}
        """Queue -> its first offset if messages that were only evicted to the tier count as present."""
        self._tiered: dict[int, _Tiered] = {}
        """Byte position at which a segment begins -> that segment in the tier."""
        self._known: list[_Known] = []
        self._cuts: list[_Cut] = []
        self._over = -1
        """Index of the newest TRIM whose sweep some node has finished; -1 if none."""
        self._standstill = Standstill(SWEEP_PATIENCE_S)
        self.pins = PinCheck(report)
        self._began: dict[NodeId, tuple[object, int]] = {}

    def applied(self, machine: Machine, runs: Sequence[Sequence[Entry]]) -> None:
        """Adds the entries that a node has applied; after a TRIM, compares the node's queues."""
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
        """Learns the entries below `index` from this node's log: the node that applied them first ended before it
        reported them."""
        assert machine.node is not None
        for entry in machine.node.storage.directory.log.read_entries(self._next, index, 1 << 30):
            self._learn(machine, entry)

    def counts(self) -> Iterator[tuple[Queue, int]]:
        """Yields (queue, number of messages that it ever had), as far as any node has applied."""
        return ((queue, len(positions)) for queue, positions in self._positions.items())

    def is_newest(self, machine: Machine) -> bool:
        """Returns True if no node has applied more than this one."""
        assert machine.node is not None
        return machine.node.state.applied.index == self._next - 1

    def compare_pins(self, machine: Machine) -> None:
        """Compares a node's count of waiting messages with the log, if no node has applied more than this one."""
        assert machine.node is not None
        if self.is_newest(machine):
            self.pins.compare(machine.node_id, machine.node.state)

    def compare(self, machine: Machine) -> None:
        """Checks that a node's queues begin where the last TRIM that it has applied says."""
        node = machine.node
        assert node is not None
        self._note_end(machine)
        applied = node.state.applied.index
        if applied >= self._next:
            return  # the state is a snapshot of a node that ended before this check saw what that node had applied
        at = bisect_left(self._known, applied + 1, key=lambda known: known[0])
        known = self._known[at - 1] if at else _Known(-1, 0, {})
        cuts = [cut for cut in self._cuts if known.index < cut.index <= applied]
        for queue, highest_first in (cuts[-1] if cuts else known).firsts.items():
            lowest_first = known.firsts.get(queue, 0)
            found = node.state.min_offset(*queue)
            if not lowest_first <= found <= highest_first and queue[0] in node.state.topics_by_id:
                said = lowest_first if lowest_first == highest_first else f"{lowest_first} to {highest_first}"
                self._report(
                    "retention",
                    f"queue {queue[1]} of topic {queue[0]} begins at {found} on node {machine.node_id}, "
                    f"the log says {said} as of index {(cuts[-1] if cuts else known).index}",
                )
            kept, kept_max = node.state.kept_offset(*queue), self._kept.get(queue, 0)
            if kept > kept_max and queue[0] in node.state.topics_by_id:
                self._report(
                    "retention",
                    f"queue {queue[1]} of topic {queue[0]} begins in the tier at {kept} on node {machine.node_id}, "
                    f"no TRIM took more than what is below {kept_max}",
                )

    def _note_end(self, machine: Machine) -> None:
        """If the node has applied the beginning of a sweep and has no sweep any more, records that the sweep is over,
        from the index in the node's trim mark on. `compare` then checks every node against the end of the sweep, this
        node first.
        """
        assert machine.node is not None
        state = machine.node.state
        done = [cut for cut in self._cuts if self._over < cut.index <= state.applied.index]
        if not done or state.sweep is not None:
            return
        cut, mark = done[-1], state.trim_mark
        index = mark.index if mark.position == cut.position and mark.index > cut.index else state.applied.index
        ended = _Known(index, max(cut.position, self._position_as_of(index)), cut.firsts)
        insort(self._known, ended, key=lambda known: known[0])
        self._over = cut.index

    def goes_on(self, machine: Machine, now_s: float) -> None:
        """Reports a leader that takes writes and has a sweep to do, but has done no slice of it for SWEEP_PATIENCE_S
        seconds. The monitor calls this after each drain of the retention lane.
        """
        node = machine.node
        if node is None or node.state.sweep is None or not node.serving.proposals.open:
            return
        sweep = node.state.sweep
        if self._standstill.is_reached(node, (machine.node_id, sweep.index, sweep.family, sweep.at), now_s):
            self._report(
                "retention",
                f"the sweep that began at index {sweep.index} stands still on node {machine.node_id}, which leads",
            )

    def files(self, machine: Machine) -> None:
        """If a node's log begins further on than at the last call, checks that the node was allowed to delete the log
        files before that. A node that still lacks older segments is not checked."""
        node = machine.node
        if node is None or node.integrity.installs.missing_bytes:
            return
        self._note_end(machine)
        log, state = node.storage.directory.log, node.state
        known = self._began.get(machine.node_id)
        self._began[machine.node_id] = (node, log.first_position)
        if known is None or known[0] is not node or log.first_position <= known[1]:
            return
        marks = [one.manifest.mark.index for one in node.storage.checkpointer.checkpoints.all()]
        used = node.keeping.retention.view(machine.node_id).disk_used_percent or 0
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
            for topic_id, queue_id, base, _, kind, items in payload.decode(entry.payload).decoded_runs():
                if kind >= payload.RowKind.SCHEDULED:
                    continue  # not in any queue
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
        elif entry.type in (EntryType.COMMAND, EntryType.CHANGE):
            for command in in_entry(entry.type, entry.payload):
                if isinstance(command, MoveSegment):
                    self._tier(command)
        self._tail = entry

    def _tier(self, command: MoveSegment) -> None:
        """Adds a change of a tiered segment's state. Nothing changes if the segment would go back to an earlier state,
        if the command is of an earlier term than the last change, or if the segment would become VERIFIED without
        having been UPLOADED. An unknown segment begins as UPLOADING.
        """
        base, state, term = command.base, command.state, command.term
        span: Any = command.span  # the command does not declare the type; the state does
        parts: Any = command.parts
        known = self._tiered.get(base)
        if known is None:
            if state == TierState.UPLOADING and span is not None:
                self._tiered[base] = _Tiered(span[0], state, term)
        elif (
            state >= known.state
            and term >= known.term
            and (state != TierState.VERIFIED or known.state >= TierState.UPLOADED)
        ):
            size = known.stored_bytes if parts is None else sum(part[1] for part in parts)
            self._tiered[base] = known._replace(state=state, term=term, stored_bytes=size)

    def _verified_to(self, position: int) -> int:
        while (known := self._tiered.get(position)) is not None and known.state == TierState.VERIFIED:
            position = known.end
        return position

    def _trim(self, machine: Machine, entry: Entry) -> None:
        trim = decode(entry.payload)
        if isinstance(trim, Slice | RemoveRows):
            return
        if trim.position > 0:
            self._justify(machine, entry, trim)
        if trim.evicts and trim.position > self._verified_to(self._known[-1].position if self._known else 0):
            return  # no node carries out this EVICT
        named = highest(trim.queues)
        for queue, positions in self._positions.items():
            first = max(bisect_left(positions, trim.position), min(named.get(queue, 0), len(positions)))
            self._firsts[queue] = max(first, self._firsts.get(queue, 0))
            if not trim.evicts:
                self._kept[queue] = max(first, self._kept.get(queue, 0))
        position = max(trim.position, self._known[-1].position if self._known else 0)
        if trim.sliced or (self._cuts and self._cuts[-1].index > self._over):
            self._cuts.append(_Cut(entry.index, position, dict(self._firsts)))
        else:
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
        # Below the position to which the nodes have evicted everything, only the tier has anything to remove (seed
        # 951000237).
        if not trim.evicts and self._known and position <= self._known[-1].position:
            large, old = self._is_much(machine.config.tier.bytes_max, base), False  # only the tier's limit counts
        if not (large or old or "disk" in reason):  # this check does not know how full the leader's disk was
            self._report("retention", f"{what}: the segment below it, from {base} on, had no reason to go")

    def _is_much(self, bytes_max: int, base: int) -> bool:
        """Returns True if the tier has more than `bytes_max` uploaded bytes from position `base` on."""
        return bool(bytes_max) and sum(one.stored_bytes for at, one in self._tiered.items() if at >= base) > bytes_max
