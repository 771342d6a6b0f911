"""Makes consumer offsets take effect in the order of their arrival (docs/guarantees.md). This is the leader's part.

A commit whose client wants no answer waits in `Effects`, which gathers many for one entry; every other change of
offsets is a command with a waiting client. Neither overtakes the other: the entry of a command begins with the commits
that arrived before it, and later commits go into a later entry. A commit that repeats the offset in the state is
dropped, because it changes nothing. It is not dropped while earlier changes wait, because they may change the offset
before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.replication.outcome import Outcome, ProposeResult
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.commands import Command, pack
from statemachine.consuming.consumer_offsets import Commit, CommitOffsets, ResetOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.offset_resets import EndResets
from statemachine.dedup import EndSessions
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.truth import CopyTruth

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.replication.outcome import Done
    from cluster.replication.pending_requests import PendingCommands
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState


_MOVES_OFFSETS = (CommitOffsets, DeleteGroup, DeleteTopic, ResetOffsets)
_OF_GROUPS = (TruthKind.GROUP, TruthKind.OFFSETS)
_ENDS = (TruthKind.TOPIC, *_OF_GROUPS)


def moves_offsets(commands: list[Command]) -> bool:
    """Returns True if one of the commands changes or removes consumer offsets."""
    return any(isinstance(command, _MOVES_OFFSETS) or _copies_end(command) for command in commands)


def _copies_end(command: Command) -> bool:
    """Returns True if the command copies, from the first group, the deletion of offsets or of their group or topic."""
    return isinstance(command, CopyTruth) and any(row is None and kind in _ENDS for kind, _, row in command.rows)


class LeavingGroups:
    """Tracks consumer groups whose deletion is requested and not applied yet. For later requests these groups no longer
    exist.

    Otherwise a commit that came after the deletion would leave an offset of a group that does not exist.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[bool]] = {}
        """Group -> its pending changes, oldest first: True for one that deletes the group, False for one that creates
        or changes it."""

    def __contains__(self, group: str) -> bool:
        changes = self._open.get(group)
        return changes is not None and changes[-1]

    def raise_for(self, commands: list[Command]) -> None:
        """Adds the changes of groups in these commands, which will be proposed in this order."""
        for group, deletes in _changes(commands):
            self._open.setdefault(group, []).append(deletes)

    def lower_for(self, commands: list[Command]) -> None:
        """Removes the changes of groups in these commands, because they were applied, are lost, or were not proposed
        after all."""
        if not self._open:
            return
        for group, deletes in _changes(commands):
            changes = self._open.get(group)
            if changes is not None and deletes in changes:
                changes.remove(deletes)
                if not changes:
                    del self._open[group]

    def clear(self) -> None:
        """Removes all changes: in a new term of leadership nothing is in flight."""
        self._open.clear()


def _changes(commands: list[Command]) -> list[tuple[str, bool]]:
    """Returns the consumer groups that the commands change, in order: (name, True if it is deleted)."""
    return [change for command in commands for change in _changes_of(command)]


def _changes_of(command: Command) -> list[tuple[str, bool]]:
    if isinstance(command, DeleteGroup):
        return [(command.name, True)]
    if isinstance(command, PutGroup):
        return [(str(command.config.get("name")), False)]
    if isinstance(command, CopyTruth):  # the command removes the group's offsets, and also the group if it still exists
        return [(str(name), row is None) for kind, name, row in command.rows if kind in _OF_GROUPS]
    return []


class OffsetOrder:
    """Keeps the leader's pending changes of consumer offsets in order. Event loop only; `Proposals` reports events to
    it."""

    def __init__(
        self,
        flush_ms: int,
        raw: RawNode,
        state: BrokerState,
        submit: Callable[[list[Command], Done], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`submit` queues commands for an entry. `flush_ms`: the most milliseconds for which oneway commits wait.
        `now_ms` returns the monotonic time in milliseconds, by which that is measured."""
        self.effects = Effects(flush_ms)
        self._raw = raw
        self._state = state
        self._submit = submit
        self._now_ms = now_ms
        self._leaving = LeavingGroups()
        self._queued = 0
        """The number of queued calls that move offsets and are not proposed yet."""
        self._index = -1
        """Index of the last proposed entry that moves offsets; -1 if there is none."""

    # --- what handlers ask -------------------------------------------------------------------------------------------

    def knows_group(self, group: str) -> bool:
        """Returns True if the group exists and no deletion of it is pending."""
        return group in self._state.groups and group not in self._leaving

    def commit_later(self, group: str, topic_id: int, queue_id: int, offset: int) -> None:
        """Adds a oneway commit to those that wait; only the last value per queue counts. They go into the next entry,
        at the latest after `offsets.flush_ms`. Does nothing if a deletion of the group is pending, or if the offset is
        committed already."""
        if group in self._leaving:
            return
        on_its_way = self.effects.has_offset(group, topic_id, queue_id) or self._in_flight()
        if not on_its_way and self._state.offset(group, topic_id, queue_id) == offset:
            return  # pulls repeat the committed offset, which need not be written to the log again
        self.effects.offset(group, topic_id, queue_id, offset, self._now_ms())

    def settle(self, group: str, done: Callable[[], None]) -> None:
        """Calls `done` when every commit of the group so far is applied, or lost with the leadership."""

        def decided(result: ProposeResult) -> None:
            # If the entry is undecided at its deadline and changes are in flight, these may still be applied in a
            # moment.
            if result.outcome is Outcome.UNKNOWN and self._in_flight():
                self._submit([], decided)
            else:
                done()

        rows = self.effects.take_group(group)
        if rows:
            self._submit([CommitOffsets(rows)], decided)
        elif self._in_flight():
            self._submit([], decided)
        else:
            done()

    def _in_flight(self) -> bool:
        return self._queued > 0 or self._index > self._raw.applied_index

    # --- what happens ------------------------------------------------------------------------------------------------

    def queued(self, commands: list[Command]) -> list[Command]:
        """Records that the commands are queued to be proposed. Returns the commands with waiting commits that must
        precede them in the log."""
        self._leaving.raise_for(commands)
        rows = [row for command in commands for row in self.effects.take_before(command)]
        self._queued += moves_offsets(commands) + bool(rows)
        return [CommitOffsets(rows)] if rows else []

    def proposed(self, index: int, calls: Iterable[PendingCommands]) -> None:
        """Records that the calls are in the entry at `index`."""
        moving = sum(moves_offsets(call.commands) for call in calls)
        if moving:
            self._queued -= moving
            self._index = index

    def carried(self, index: int) -> None:
        """Records that the entry at `index` contains the commits that waited here."""
        self._index = index

    def decided(self, calls: Iterable[PendingCommands]) -> None:
        """Records that the commands of these calls were applied, or are lost."""
        for call in calls:
            self._leaving.lower_for(call.commands)

    def refused(self, calls: Iterable[PendingCommands]) -> None:
        """Records that queued calls will not be proposed, because no entry can hold them."""
        for call in calls:
            self._queued -= moves_offsets(call.commands)
            self._leaving.lower_for(call.commands)

    def close(self) -> None:
        """Drops oneway commits that were not proposed, because leadership ended; their senders expect no answer."""
        self._queued = 0
        self.effects.clear()

    def open(self) -> None:
        """Prepares for a new term of leadership, in which nothing is in flight."""
        self._leaving.clear()


# Effects are commands without a waiting client: oneway offset commits and ended sessions. They are added to the next
# entry.
#
# No later command overtakes them: see `take_before`, and `Proposals`, which adds them only to entries behind every
# command that is still to be proposed.

logger = logging.getLogger(__name__)

TAKEN_MAX = 2_000
"""The most effects of each kind that one entry carries: some 20 ms of work to apply. The others go into the next one.
"""


class Effects:
    """Keeps effects: commands without a waiting client (oneway commits, ended sessions), which wait until an entry
    includes them. They are dropped when leadership ends, because their senders expect no answer."""

    def __init__(self, flush_ms: int) -> None:
        """`flush_ms`: milliseconds after which waiting effects get an entry of their own, if no other entry has
        included them."""
        self._flush_ms = flush_ms
        self._offsets: dict[tuple[str, int, int], int] = {}
        self._ended_sessions: list[bytes] = []
        self.waiting = False
        """False if no effect waits; True if some may."""
        self._since_ms = 0
        self._taken: tuple[dict[tuple[str, int, int], int], list[bytes]] = ({}, [])

    def reload(self, flush_ms: int) -> None:
        """Changes `flush_ms`."""
        self._flush_ms = flush_ms

    def offset(self, group: str, topic_id: int, queue_id: int, offset: int, now_ms: int) -> None:
        """Adds a consumer offset; only the last value per queue counts."""
        self._note(now_ms)
        self._offsets[group, topic_id, queue_id] = offset

    def take_group(self, group: str) -> list[Commit]:
        """Removes and returns the rows of one group's offsets."""
        names = [name for name in self._offsets if name[0] == group]
        return [(*name, self._offsets.pop(name)) for name in names]

    def take_before(self, command: Command) -> list[Commit]:
        """Removes and returns the rows that must be in the log before `command`, which came later.

        A commit or a reset replaces waiting offsets of the same queues. Waiting offsets of a group are written before
        its deletion, and are deleted with it. Waiting offsets of queues are written before the end of their reset, so
        that apply ignores them: they were committed before their consumer knew of the reset. A deleted topic needs
        nothing: its id is never reused, and apply ignores such rows.
        """
        if not self._offsets:
            return []
        if isinstance(command, (DeleteGroup, CopyTruth)):
            return [row for group, deletes in _changes_of(command) if deletes for row in self.take_group(group)]
        if isinstance(command, CommitOffsets):
            for group, topic_id, queue_id, _ in command.rows:
                self._offsets.pop((group, topic_id, queue_id), None)
        if isinstance(command, ResetOffsets):
            for topic_id, queue_id, _ in command.rows:
                self._offsets.pop((command.group, topic_id, queue_id), None)
        if isinstance(command, EndResets):
            names = [(command.group, topic_id, queue_id) for topic_id, queue_id, _ in command.rows]
            return [(*name, self._offsets.pop(name)) for name in names if name in self._offsets]
        return []

    def has_offset(self, group: str, topic_id: int, queue_id: int) -> bool:
        """Returns True if a commit of this queue by the group waits here."""
        return (group, topic_id, queue_id) in self._offsets

    def session_ended(self, producer_id: bytes, now_ms: int) -> None:
        """Adds the end of a producer session: the state may forget this producer."""
        self._note(now_ms)
        self._ended_sessions.append(producer_id)

    def due(self, now_ms: int) -> bool:
        """Returns True if effects have waited so long that they need an entry of their own."""
        return bool(self._offsets or self._ended_sessions) and now_ms - self._since_ms >= self._flush_ms

    def take(self) -> bytes:
        """Removes and returns the oldest effects, packed; b"" if there are none. If they cannot be packed, they are
        dropped, which is logged, and b"" is returned."""
        commands: list[Command] = []
        self._taken = (self._take_offsets(), self._ended_sessions[:TAKEN_MAX])
        self._ended_sessions = self._ended_sessions[TAKEN_MAX:]
        self.waiting = bool(self._offsets or self._ended_sessions)
        offsets, ended_sessions = self._taken
        if offsets:
            commands.append(CommitOffsets([(*name, offset) for name, offset in offsets.items()]))
        if ended_sessions:
            commands.append(EndSessions(ended_sessions))
        try:
            return pack(commands) if commands else b""
        except (ValueError, OverflowError, TypeError):
            logger.exception("offsets and ended sessions were not committed: they cannot be encoded")
            self._taken = ({}, [])
            return b""

    def _take_offsets(self) -> dict[tuple[str, int, int], int]:
        taken, self._offsets = self._offsets, {}
        if len(taken) > TAKEN_MAX:
            rows = list(taken.items())
            taken, self._offsets = dict(rows[:TAKEN_MAX]), dict(rows[TAKEN_MAX:])
        return taken

    def put_back(self) -> None:
        """Puts back the effects that were taken last, because they were not proposed after all; newer effects for the
        same queue take precedence."""
        offsets, ended_sessions = self._taken
        self._offsets = {**offsets, **self._offsets}
        self._ended_sessions = ended_sessions + self._ended_sessions
        self._taken = ({}, [])
        self.waiting = True

    def clear(self) -> None:
        """Drops all waiting effects."""
        self._offsets.clear()
        self._ended_sessions.clear()
        self.waiting = False

    def _note(self, now_ms: int) -> None:
        if not (self._offsets or self._ended_sessions):
            self._since_ms = now_ms
        self.waiting = True
