"""Staged writes to queues of several groups of brokers: prepared in each, decided once in the first (docs/adr/0109).

The *decider* of such a write is an attempt in the first group that has no messages. While the decider is open, the
write is undecided. An entry of the first group's log commits the write and its decider together. This is the decision
to commit, and a row lists the other groups that still have to carry it out. If the decider ends in any other way, the
write is aborted; no row records an abort.

Every other group *prepares* the write before the decision. Its winning attempts are complete then, and only the
decision ends them. The group's leader asks the first group for the decision, and proposes an entry that commits or
discards the prepared attempts. After a commit the group keeps the row of the write until the first group has recorded
that this group has committed.

Invariants: no later attempt gets the number of a decider. A prepared write is committed only if the decision names the
group. It is aborted only if the decider is not open and no decision of the decider waits for the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, ClassVar, NamedTuple, Self

from msgspec import Meta

from raftlog.types import FIRST_GROUP, GROUPS_MAX
from statemachine.cluster_wide.broker_groups import BrokerGroups
from statemachine.commands import U63, Command, CommandResult, InvalidCommandError, done, not_found
from statemachine.delivery.staged_writes import (
    COMMITTED,
    FULL,
    INCOMPLETE,
    PREPARED,
    AttemptState,
    StagedWrites,
    WriteName,
)
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import GROUPS_LEVEL
from statemachine.rows import keys
from statemachine.rows.kv import KV, TRANS
from statemachine.rows.sorted_map import SortedMap
from statemachine.rows.write_batch import Stage

PREPARED_MAX = 4_096
"""The most rows of prepared writes of a group at once, including committed writes that the first group has not recorded
yet. At this number `prepare_write` is refused."""
OPEN, ABORTED = "open", "aborted"
"""Results of `decide_write` beside COMMITTED. OPEN: the write is undecided. ABORTED: the write is aborted, or its
decision does not name the group."""

OtherGroup = Annotated[int, Meta(ge=FIRST_GROUP + 1, le=GROUPS_MAX)]


class PrepareWrite(Command, tag="prepare_write", frozen=True):
    """Prepares a write in another group than the first."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    name: WriteName
    write: U63
    now_ms: U63
    """Log time of the proposal."""
    decider: U63
    """The number of the attempt in the first group that decides."""
    winners: Sequence[tuple[U63, U63]]
    """The winning attempts in this group: [(attempt, number of its messages), ...], at least one."""


class CommitGroups(Command, tag="commit_groups", frozen=True):
    """Commits a write in the first group. This decides that the other groups commit it too."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    name: WriteName
    write: U63
    now_ms: U63
    """Log time of the proposal."""
    decider: U63
    winners: Sequence[tuple[U63, U63]]
    """The winning attempts in the first group, without the decider; may be empty."""
    groups: Sequence[OtherGroup]
    """The other groups, each of which has prepared the write."""


class DecideWrite(Command, tag="decide_write", frozen=True):
    """Asks the first group for the decision about a write that another group has prepared."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    name: WriteName
    write: U63
    decider: U63
    broker_group: OtherGroup
    abort: bool
    """True to abort the write now if it is undecided."""


class EndPrepared(Command, tag="end_prepared", frozen=True):
    """Ends a write that this group has prepared, by the first group's decision."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    decider: U63
    committed: bool
    """False if the decision is to abort."""
    now_ms: U63
    """Log time of the proposal."""


class ConfirmWrite(Command, tag="confirm_write", frozen=True):
    """Records in the first group that another group has carried out the decision to commit."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    OF_TRUTH: ClassVar[bool] = True
    decider: U63
    broker_group: OtherGroup


class ForgetPrepared(Command, tag="forget_prepared", frozen=True):
    """Removes the row of a prepared write that was committed, after the first group has recorded the commit."""

    LEVEL: ClassVar[int] = GROUPS_LEVEL
    decider: U63


class PreparedState(IntEnum):
    """The state of a prepared write. Values are in rows: never renumber."""

    UNDECIDED = 0
    COMMITTED = 1
    """The write was committed in this group, and the first group has not recorded that yet."""


class PreparedWrite(NamedTuple):
    """A write that a group has prepared."""

    decider: int
    """The number of the attempt in the first group that decides."""
    state: PreparedState
    write: int
    attempts: int
    """The number of the write's winning attempts in this group."""
    messages: int
    """The number of messages of these attempts."""
    prepared_ms: int
    """Log time at which the write was prepared."""
    name: str


class Decision(NamedTuple):
    """A decision to commit that some groups have not carried out yet."""

    decider: int
    write: int
    committed_ms: int
    """Log time of the decision."""
    groups: tuple[int, ...]
    """The groups that have not confirmed to the first group that they carried the decision out, ascending."""
    name: str


class PreparedWrites(Family):
    """Prepared writes, rows "q" of the family `trans` in other groups than the first, and decisions, rows "g" in the
    first. Any thread may read `prepared` and `decisions`, which the apply thread changes in place."""

    ROWS = ((TRANS, keys.PREPARED_PREFIX), (TRANS, keys.DECISION_PREFIX))
    LATER_ROWS = (
        LaterRows(GROUPS_LEVEL, TRANS, keys.PREPARED_PREFIX),
        LaterRows(GROUPS_LEVEL, TRANS, keys.DECISION_PREFIX),
    )

    def __init__(self, kv: KV, writes: StagedWrites, broker_groups: BrokerGroups, group: int) -> None:
        """`group`: the number of the group whose state it is."""
        self._writes, self._broker_groups, self._own = writes, broker_groups, group
        found = [_prepared(key, row) for key, row in kv.scan(TRANS, *keys.within(keys.PREPARED_PREFIX))]
        self.prepared = SortedMap((each.decider, each) for each in found)
        """The prepared writes by the numbers of their deciders."""
        self._live = len(found)
        """The number of prepared writes, with the changes of the batch being applied."""
        decided = [_decision(key, row) for key, row in kv.scan(TRANS, *keys.within(keys.DECISION_PREFIX))]
        self.decisions = SortedMap((each.decider, each) for each in decided)
        """The decisions that some group has still to carry out, by the numbers of the deciders."""
        self.changed: dict[int, PreparedWrite | Decision | None] = {}
        """Number of a decider -> its changed row in the batch being applied; None if the batch removed it. The first
        group has only decisions, any other group only prepared writes."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state. `families` has the families on which it depends."""
        return cls(families.kv, families[StagedWrites], families[BrokerGroups], families.group)

    # -- apply: every group but the first

    @applies(PrepareWrite)
    def prepare(self, stage: Stage, command: PrepareWrite) -> CommandResult:
        """Prepares the write with its winning attempts. The result's value is the number of their messages. A repeated
        command changes nothing. The result is an error for the reasons of `commit_write`. It is PREPARED, with a
        decider's number, if another write of the name is prepared, or if another write has this decider; INCOMPLETE if
        the write is prepared with other attempts; FULL if there are PREPARED_MAX prepared writes; `refused` in the
        first group. Raises InvalidCommandError if no attempt is named, or one twice."""
        if self._own == FIRST_GROUP:
            return CommandResult(False, "refused", f"group {FIRST_GROUP} commits a write and does not prepare it")
        name, write, counts = command.name, command.write, dict(command.winners)
        if not counts or len(counts) < len(command.winners):
            raise InvalidCommandError("no attempt is named, or one is named twice")
        total = sum(counts.values())
        known = self._current(stage, command.decider)
        if known is not None:
            if (known.name, known.write, known.attempts, known.messages) == (name, write, len(counts), total):
                return done(total)
            if (known.name, known.write) != (name, write):
                return CommandResult(False, PREPARED, known.decider)
            return CommandResult(False, INCOMPLETE, "it is prepared with other attempts")
        refused = self._writes.refusal(stage, name, write, counts)
        if refused is not None:
            return refused
        other = self._prepared_of(name)
        if other is not None:
            return CommandResult(False, PREPARED, other)
        if self._live >= PREPARED_MAX:
            return CommandResult(False, FULL, PREPARED_MAX)
        self._writes.prepare(stage, counts)
        self._live += 1
        self._put(
            stage,
            PreparedWrite(
                command.decider, PreparedState.UNDECIDED, write, len(counts), total, command.now_ms, command.name
            ),
        )
        return done(total)

    @applies(EndPrepared)
    def end(self, stage: Stage, command: EndPrepared) -> CommandResult:
        """Commits or discards the attempts of a prepared write. The result's value is False if the write is not
        prepared here or has ended before, else True."""
        known = self._current(stage, command.decider)
        if known is None or known.state is not PreparedState.UNDECIDED:
            return done(False)
        if command.committed:
            self._writes.commit_prepared(stage, known.name, known.write, known.messages, command.now_ms)
            self._put(stage, known._replace(state=PreparedState.COMMITTED))
        else:
            self._writes.discard_prepared(stage, known.name)
            self._drop(stage, known)
        return done(True)

    @applies(ForgetPrepared)
    def forget(self, stage: Stage, command: ForgetPrepared) -> CommandResult:
        """Removes the row of a write that was committed. The result's value is False if there is no such row."""
        known = self._current(stage, command.decider)
        if known is None or known.state is not PreparedState.COMMITTED:
            return done(False)
        self._drop(stage, known)
        return done(True)

    # -- apply: the first group

    @applies(CommitGroups)
    def commit(self, stage: Stage, command: CommitGroups) -> CommandResult:
        """Commits the write in all groups, if its decider is open and has no messages, and otherwise as `commit_write`
        does. The result's value is the number of messages that the write brings in the first group. Raises
        InvalidCommandError if no other group is named, one is named twice or does not exist."""
        groups = sorted(set(command.groups))
        if not groups or len(groups) < len(command.groups):
            raise InvalidCommandError("no other group is named, or one is named twice")
        missing = [group for group in groups if not self._broker_groups.exists(group)]
        if missing:
            raise InvalidCommandError(f"there is no group {missing[0]}")
        winners = [*command.winners, (command.decider, 0)]
        result = self._writes.commit_with(stage, command.name, command.write, command.now_ms, winners)
        if result.ok:
            self._note(stage, Decision(command.decider, command.write, command.now_ms, tuple(groups), command.name))
        return result

    @applies(DecideWrite)
    def decide(self, stage: Stage, command: DecideWrite) -> CommandResult:
        """Returns the decision for one group: the result's value is COMMITTED, ABORTED or OPEN."""
        decision = self._decided(stage, command.decider)
        if decision is not None and (decision.name, decision.write) == (command.name, command.write):
            return done(COMMITTED if command.broker_group in decision.groups else ABORTED)
        attempt = self._writes.current(command.decider)
        if attempt is None or (attempt.name, attempt.write) != (command.name, command.write):
            return done(ABORTED)
        if attempt.state is not AttemptState.OPEN:
            return done(ABORTED)
        if not command.abort:
            return done(OPEN)
        self._writes.end(stage, command.decider, AttemptState.DISCARDED)
        return done(ABORTED)

    @applies(ConfirmWrite)
    def confirm(self, stage: Stage, command: ConfirmWrite) -> CommandResult:
        """Records that a group has carried out the decision to commit. When the last group has, the decision's row is
        removed. The result is `not_found` if the decision does not wait for the group."""
        decision = self._decided(stage, command.decider)
        if decision is None or command.broker_group not in decision.groups:
            return not_found(f"no decision of {command.decider} waits for group {command.broker_group}")
        left = tuple(group for group in decision.groups if group != command.broker_group)
        if left:
            self._note(stage, decision._replace(groups=left))
        else:
            self.changed[command.decider] = None
            stage.delete(TRANS, keys.decision_key(command.decider))
        return done()

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        changed, self.changed = self.changed, {}
        for decider, row in changed.items():
            if isinstance(row, PreparedWrite):
                self.prepared.put(decider, row)
            elif isinstance(row, Decision):
                self.decisions.put(decider, row)
            else:
                for rows in (self.prepared, self.decisions):
                    if decider in rows:
                        rows.remove(decider)

    def undecided(self, name: str) -> PreparedWrite | None:
        """Returns the undecided prepared write of the name; None if there is none. Walks over all prepared writes."""
        return _undecided(self.prepared.values(), name)

    # -- internal methods

    def _current(self, stage: Stage, decider: int) -> PreparedWrite | None:
        key = keys.prepared_key(decider)
        row = stage.get(TRANS, key)
        return None if row is None else _prepared(key, row)

    def _prepared_of(self, name: str) -> int | None:
        """Returns the decider of the undecided prepared write of the name; None if there is none."""
        if not self._writes.is_prepared(name):
            return None
        now: Mapping[int, PreparedWrite | Decision | None] = {**self.prepared, **self.changed}
        found = _undecided(now.values(), name)
        return None if found is None else found.decider

    def _decided(self, stage: Stage, decider: int) -> Decision | None:
        key = keys.decision_key(decider)
        row = stage.get(TRANS, key)
        return None if row is None else _decision(key, row)

    def _put(self, stage: Stage, row: PreparedWrite) -> None:
        self.changed[row.decider] = row
        stage.put(TRANS, keys.prepared_key(row.decider), keys.PREPARED.pack(*row[1:-1]) + row.name.encode())

    def _drop(self, stage: Stage, row: PreparedWrite) -> None:
        self.changed[row.decider] = None
        self._live -= 1
        stage.delete(TRANS, keys.prepared_key(row.decider))

    def _note(self, stage: Stage, row: Decision) -> None:
        self.changed[row.decider] = row
        groups = sum([1 << group - 1 for group in row.groups])
        value = keys.DECISION.pack(row.write, row.committed_ms, groups) + row.name.encode()
        stage.put(TRANS, keys.decision_key(row.decider), value)


class PreparedReads(Reads):
    """Read access to what a state holds about writes to several groups of brokers."""

    prepared_writes = family_of(PreparedWrites)
    """Writes that this group has prepared; in the first group, decisions that other groups have to carry out."""


def _undecided(rows: Iterable[PreparedWrite | Decision | None], name: str) -> PreparedWrite | None:
    of_name = (each for each in rows if isinstance(each, PreparedWrite) and each.name == name)
    return next((each for each in of_name if each.state is PreparedState.UNDECIDED), None)


def _prepared(key: bytes, row: bytes) -> PreparedWrite:
    state, write, attempts, messages, prepared_ms = keys.PREPARED.unpack_from(row)
    name = row[keys.PREPARED.size :].decode()
    return PreparedWrite(keys.decider_of(key), PreparedState(state), write, attempts, messages, prepared_ms, name)


def _decision(key: bytes, row: bytes) -> Decision:
    write, committed_ms, bits = keys.DECISION.unpack_from(row)
    groups = tuple(group for group in range(FIRST_GROUP, GROUPS_MAX + 1) if bits >> group - 1 & 1)
    return Decision(keys.decider_of(key), write, committed_ms, groups, row[keys.DECISION.size :].decode())
