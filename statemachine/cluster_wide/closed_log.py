"""Closes the log of a group of brokers that drains: after the entry that closes it, the log takes no message
(docs/adr/0113).

The leader checks which messages are left as of an applied entry. If none is, it proposes to close the log. A message
may come between that entry and the closing one. Therefore apply decides whether the log closes: an error or a delay of
the leader cannot lose a message.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import msgpack

from raftlog.errors import InvariantViolationError
from statemachine.cluster_wide.broker_groups import BrokerGroups, GroupState
from statemachine.commands import U64, Command, CommandResult, done
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import DRAINS_LEVEL
from statemachine.rows import meta_keys
from statemachine.rows.kv import KV, META
from statemachine.rows.write_batch import Stage


class LogEnd(NamedTuple):
    """A log's record about its end: the last messages of the drain, and how the log was closed."""

    last: int
    """Index of the last entry with messages since the group began to drain; 0 if there is none."""
    since_ms: int
    """The time at which the drain began (`BrokerGroup.since_ms`), which identifies the drain."""
    force: bool | None = None
    """None if the log is not closed; True if it was closed although messages were left; False if none were left."""


class CloseBrokerGroup(Command, tag="close_broker_group", frozen=True):
    """Closes the log of the group, which takes no message any more."""

    LEVEL: ClassVar[int] = DRAINS_LEVEL
    since_ms: U64
    """The drain that the command ends, by its `BrokerGroup.since_ms`."""
    checked: U64
    """The applied index at which the leader checked which messages were left."""
    force: bool
    """True to close the log although messages are left."""


class ClosedLog(Family):
    """The way in which the group's log was closed at the end of a drain. `end` is replaced and never changed, so any
    thread may read it."""

    ROWS = ((META, meta_keys.CLOSED_KEY),)
    LATER_ROWS = (LaterRows(DRAINS_LEVEL, META, meta_keys.CLOSED_KEY),)

    def __init__(self, kv: KV, groups: BrokerGroups) -> None:
        """`groups`: the groups of brokers of the same state."""
        self._groups = groups
        row = kv.get(META, meta_keys.CLOSED_KEY)
        self._end: LogEnd | None = None if row is None else LogEnd(*msgpack.unpackb(row))
        self.end: LogEnd | None = None
        """The log's record about its end; None until a message comes during a drain, or the log is closed."""
        self.is_shut: bool = self._end is not None and self._end.force is not None
        """True if the log is closed, with the changes of the batch being applied (apply thread only)."""
        self.changed: bool = True
        self.publish()

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[BrokerGroups])

    @property
    def is_closed(self) -> bool:
        """True if the log is closed and takes no message any more. Any thread may read it."""
        return self.end is not None and self.end.force is not None

    def stored(self, stage: Stage, index: int) -> None:
        """Records that the entry at `index` has messages. Called if the own group is not active, or the log is closed.
        Raises InvariantViolationError if the log is closed."""
        end = self._end
        if end is not None and self.is_shut:
            raise InvariantViolationError(f"messages after the log was closed; the last ones were in entry {end.last}")
        row = self._groups.staged.get(self._groups.own)
        if row is not None and row.state is GroupState.DRAINING:
            self._put(stage, LogEnd(index, row.since_ms))

    @applies(CloseBrokerGroup)
    def close(self, stage: Stage, command: CloseBrokerGroup) -> CommandResult:
        """Closes the log. The result is `refused` if a message came after the entry `command.checked`, or if the drain
        that the command names has ended; otherwise its value is the LogEnd. A log that is closed already is not
        changed."""
        end = self._end
        if self.is_shut:
            return done(end)
        row = self._groups.staged.get(self._groups.own)
        if row is None or row.state is not GroupState.DRAINING or row.since_ms != command.since_ms:
            return CommandResult(False, "refused", "the drain that this would end has ended")
        last = end.last if end is not None and end.since_ms == row.since_ms else 0
        if last > command.checked:
            told = f"a message was stored in entry {last}, after the look at {command.checked}"
            return CommandResult(False, "refused", told)
        closed = LogEnd(last, row.since_ms, command.force)
        self._put(stage, closed)
        return done(closed)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        self.end, self.changed = self._end, False

    def _put(self, stage: Stage, end: LogEnd) -> None:
        self._end, self.changed = end, True
        self.is_shut = end.force is not None
        fields = end if end.force is not None else end[:2]
        stage.put(META, meta_keys.CLOSED_KEY, msgpack.packb(fields))


class ClosedLogReads(Reads):
    """Read access to what a state holds about the end of its log."""

    closed_log = family_of(ClosedLog)
    """The end of the log, once its group of brokers has drained."""
