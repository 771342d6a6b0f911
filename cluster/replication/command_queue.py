"""Queues commands that wait for their entry. Each is checked, encoded and measured when it arrives, so that its caller
learns of a mistake at once, and never after the command was proposed.

Commands of the truth (the state that all groups of brokers share: users, rules, topics and consumer groups) are decided
by the first group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, cast

from cluster.replication.outcome import CommitSession, Done, Outcome, ProposeResult
from cluster.replication.pending_requests import PendingCommands, PendingEntry
from cluster.replication.topic_slots import closes
from raftlog.errors import FrameError
from raftlog.types import FIRST_GROUP, EntryType
from statemachine import payload
from statemachine.commands import Command, join, pack_bare, pack_change
from statemachine.consuming.groups import PutGroup
from statemachine.payload import SessionRows
from statemachine.topics.topics import QUEUES_DEFAULT, CreateTopic

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection
    from cluster.replication.offset_order import OffsetOrder
    from cluster.replication.send_flow import SendFlow
    from cluster.replication.topic_slots import TopicSlots
    from cluster.runtime.context import NodeContext
    from raftlog.core.raw_node import RawNode
    from statemachine.broker_state import BrokerState

SubmitElsewhere = Callable[[list[Command], Done, str], None]
"""(commands, the function that gets their results, author): submits commands to the first group."""
SubmitCommands = Callable[[list[Command], Done, CommitSession | None, str], None]

COMMANDS_BYTES_MAX = 4 << 20
"""The largest encoding of one caller's commands, in bytes: a fraction of the longest frame, and more than any honest
request needs."""


_MAKES = (CreateTopic, PutGroup)
Making = type[CreateTopic | PutGroup]
_KINDS: dict[Making, tuple[str, str]] = {
    CreateTopic: ("topics", "topics_max"),
    PutGroup: ("groups", "groups_max"),
}
New = set[tuple[Making, str]]
"""The topics and groups that commands create: (class of the creating command, name)."""


class NameLimits:
    """Enforces the limits on topics, queues and groups: counts existing ones and those being created."""

    def __init__(self, limits: LimitsSection, state: BrokerState) -> None:
        self._limits = limits
        self._state = state
        self._coming: New = set()
        self._coming_of = Counter[Making]()
        """Class of commands -> number of topics or groups that undecided commands of that class create."""
        self._coming_queues = 0

    def reload(self, limits: LimitsSection) -> None:
        """Applies changed limits."""
        self._limits = limits

    def admit(self, commands: list[Command], done: Done) -> Done:
        """Checks the limits for these commands. Returns `done`, or a wrapper of it that also ends the counting of the
        topics and groups being created. Raises UnacceptableError if a limit would be exceeded."""
        new, queues = self._new(commands), self._new_queues(commands)
        if not new and not queues:
            return done
        for command, (kind, key) in _KINDS.items():
            count = sum(1 for made, _ in new if made == command)
            if not count:
                continue
            there = len(getattr(self._state, kind)) + self._coming_of[command]
            maximum: int = getattr(self._limits, key)
            if there + count > maximum:
                raise UnacceptableError(
                    f"there are {there} {kind} (those of retries included), and limits.{key} is {maximum}: delete "
                    f"unused ones, or raise it: raftmq config set limits.{key} N"
                )
        there, maximum = self._state.queue_count + self._coming_queues, self._limits.queues_max
        if queues and there + queues > maximum:
            raise UnacceptableError(
                f"there are {there} queues of all topics, {queues} more are asked for, and limits.queues_max is "
                f"{maximum}: delete unused topics, ask for fewer queues, or raise it: raftmq config set "
                "limits.queues_max N"
            )
        self._coming |= new
        self._coming_of.update(made for made, _ in new)
        self._coming_queues += queues
        return self._noting(new, queues, done)

    def _new(self, commands: list[Command]) -> New:
        tables: dict[Making, Container[str]] = {CreateTopic: self._state.topics, PutGroup: self._state.groups}
        making = [command for command in commands if isinstance(command, _MAKES)]
        made = {(type(command), str(command.config.get("name"))) for command in making}
        return {(kind, name) for kind, name in made if name not in tables[kind]} - self._coming

    def _new_queues(self, commands: list[Command]) -> int:
        """Returns the largest number of queues that the commands can add. A queue count that is no number is ignored
        here and refused elsewhere."""
        added, group = 0, self._state.broker_groups.own
        for command in commands:
            if not isinstance(command, CreateTopic):
                continue
            config = command.config
            there = self._state.topics.get(str(config.get("name")))
            if there is not None and command.if_absent:
                continue
            known = (there.read_queues, there.write_queues) if there is not None else (QUEUES_DEFAULT, QUEUES_DEFAULT)
            own = [row[1:] for row in cast("Sequence[Sequence[object]]", config.get("place", ())) if row[0] == group]
            if "place" in config and not own:
                continue
            given = own[0] if own else [config.get("read_queues", known[0]), config.get("write_queues", known[1])]
            queues = max([number for number in given if type(number) is int], default=0)
            added += max(0, queues - (0 if there is None else there.queues))
        return added

    def _noting(self, new: New, queues: int, done: Callable[[ProposeResult], None]) -> Done:
        def ended(result: ProposeResult) -> None:
            self._coming -= new
            self._coming_of.subtract(made for made, _ in new)
            self._coming_queues -= queues
            done(result)

        return ended


class UnacceptableError(ValueError):
    """Raised when no entry can hold the request, or a limit forbids it."""


def encode(commands: list[Command]) -> bytes:
    """Returns the commands as they are encoded in an entry. Raises UnacceptableError if no entry can hold them."""
    try:
        packed = pack_bare(commands)
    except (ValueError, OverflowError, TypeError) as error:
        raise UnacceptableError(f"the request cannot be made an entry of the log: {error}") from None
    if len(packed) > COMMANDS_BYTES_MAX:
        raise UnacceptableError(f"the request takes {len(packed)} bytes in the log, {COMMANDS_BYTES_MAX} are allowed")
    return packed


def cut_calls(calls: list[PendingCommands], bytes_max: int) -> list[PendingCommands]:
    """Returns the first calls that one entry should hold: at most `bytes_max` bytes of commands, but at least one call.
    A frame has a limit, and many large requests may arrive together. Either all of the returned calls have a session or
    none has, and all have the same author."""
    bytes_left = bytes_max
    for at, call in enumerate(calls):
        bytes_left -= len(call.packed)
        alike = (call.session is None) == (calls[0].session is None) and call.author == calls[0].author
        if bytes_left < 0 or not alike:
            return calls[: max(1, at)]
    return list(calls)


def entry_of(calls: list[PendingCommands]) -> tuple[EntryType, bytes]:
    """Returns the type and payload of the entry for these calls (see `cut_calls`). If they have sessions, it is a
    MESSAGES entry without messages, whose effects are the commands."""
    packed = join(sum([len(call.commands) for call in calls]), [call.packed for call in calls])
    rows: dict[bytes, list[SessionRows]] = {}
    for call in calls:
        if call.session is not None:
            rows.setdefault(call.session.producer_id, []).append(call.session)
    if not rows:
        author = calls[0].author
        return (EntryType.CHANGE, pack_change(author, packed)) if author else (EntryType.COMMAND, packed)
    sessions = [
        SessionRows(
            producer_id,
            max(each.low_sequence for each in parts),
            max(each.max_sequence for each in parts),
            b"".join(sorted({each.rows for each in parts})),
        )
        for producer_id, parts in rows.items()
    ]
    return EntryType.MESSAGES, payload.encode((), 0, (), sessions, effects=packed)


class CommandQueue:
    """The commands that wait for their entry, while this node leads. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        state: BrokerState,
        topics: TopicSlots,
        flow: SendFlow,
        offsets: OffsetOrder,
        *,
        submit: SubmitCommands,
        contained: Callable[[str, Exception], object],
        now_ms: Callable[[], int],
    ) -> None:
        """`submit` takes commands as a new request; this node may no longer be the leader by then. `contained` is
        called when a request fails that should have been refused earlier. `now_ms` returns the time at the last timer
        call."""
        self._limits, self._group = context.config.limits, context.config.cluster.group
        self._names = NameLimits(context.config.limits, state)
        self._state, self._topics, self._flow, self._offsets = state, topics, flow, offsets
        self._submit, self._contained, self._now_ms = submit, contained, now_ms
        self._monotonic_ms, self._wake = context.clock.monotonic_ms, context.wake
        self.waiting: list[PendingCommands] = []
        self._elsewhere: SubmitElsewhere | None = None
        self._told_through: Callable[[Done], Done] = lambda done: done

    def reload(self, limits: LimitsSection) -> None:
        """Applies changed limits."""
        self._limits = limits
        self._names.reload(limits)

    def decide_elsewhere(self, elsewhere: SubmitElsewhere) -> None:
        """Has the first group carry out commands of the truth from now on, through `elsewhere`. Called on nodes of all
        other groups (`cluster.truth.truth_acts`)."""
        self._elsewhere = elsewhere

    def tell_through(self, told_through: Callable[[Done], Done]) -> None:
        """Calls back `told_through(done)` in place of `done` for commands of the truth from now on, if there are other
        groups: these must copy the change first. Called on nodes of the first group (`cluster.truth.truth_source`)."""
        self._told_through = told_through

    def submit(self, commands: list[Command], done: Done, session: CommitSession | None, author: str) -> None:
        """Queues commands for one COMMAND entry, or CHANGE entry if there is an `author`."""
        if self._group != FIRST_GROUP and any(command.OF_TRUTH for command in commands):
            self._have_decided(commands, done, session, author)
            return
        # The caller gets its result only when the other groups have copied the change, because it may then ask any of
        # them.
        if self._state.broker_groups.by_number and any(command.OF_TRUTH for command in commands):
            done = self._told_through(done)
        try:
            done = self._names.admit(commands, done)
            packed = encode(commands)
        except UnacceptableError as error:
            done(ProposeResult(Outcome.FAIL, [], None, str(error), unacceptable=True))
            return
        # No message may follow the command that closes the log: sends that wait for a quota are queued before it now.
        if closes(commands):
            self._flow.log_closes(self._now_ms())
            self._topics.forget()
        for name in self._topics.barriers.raise_for(commands):
            self._flow.topic_changes(name, self._now_ms())
            self._topics.forget_topic(name)
        before = self._offsets.queued(commands)
        received_ms = self._monotonic_ms()
        # Commits that came earlier precede the commands in the log: offsets take effect in the order of their arrival.
        if before:
            self._queue_before(before, received_ms)
        self.waiting.append(PendingCommands(commands, packed, done, received_ms, session, author))
        self._wake()

    def _have_decided(self, commands: list[Command], done: Done, session: CommitSession | None, author: str) -> None:
        """Passes the commands of the truth to the first group. Submits the other commands to this group once the first
        group has carried out its commands."""
        theirs = [command for command in commands if command.OF_TRUTH]
        own = [command for command in commands if not command.OF_TRUTH]

        def decided(result: ProposeResult) -> None:
            # Unless the first group has carried out its commands, the others are not begun. So this is the outcome of
            # all commands, as it is if there are no others.
            if result.outcome is not Outcome.OK or not own:
                done(result)
                return

            def both(last: ProposeResult) -> None:
                if last.outcome is not Outcome.OK:  # not FAIL, because the first group has carried out its commands
                    remark = f"group {FIRST_GROUP} has done its part; the rest in group {self._group}: {last.remark}"
                    done(ProposeResult(Outcome.UNKNOWN, [], None, remark))
                    return
                first, second = iter(result.results), iter(last.results)
                done(last._replace(results=[next(first if command.OF_TRUTH else second) for command in commands]))

            self._submit(own, both, session, author)

        if self._elsewhere is None:
            remark = f"group {FIRST_GROUP} decides this, and group {self._group} copies it"
            done(ProposeResult(Outcome.FAIL, [], None, remark))
        else:
            self._elsewhere(theirs, decided, author)

    def _queue_before(self, commands: list[Command], received_ms: int) -> None:
        """Queues waiting offsets of oneway commits, so that they precede other commands."""
        call = PendingCommands(commands, b"", lambda _: None, received_ms)
        try:
            call.packed = encode(commands)
        except UnacceptableError as error:
            self._contained("committing offsets", error)
            self._offsets.refused([call])
            return
        self.waiting.append(call)

    def propose(self, raw: RawNode, deadline_ms: int) -> tuple[PendingEntry, int] | None:
        """Proposes one entry of the commands that wait longest; returns it and the bytes of its payload, or None if no
        entry can hold them. Raises NotLeaderError or ProposalDroppedError; the commands then stay in the queue."""
        calls = cut_calls(self.waiting, self._limits.batch_bytes_max)
        kind, payload = entry_of(calls)
        try:
            entry = raw.propose(kind, payload, raw.log_time_ms())
        except FrameError as error:
            del self.waiting[: len(calls)]
            self._unbuildable(calls, error)
            return None
        del self.waiting[: len(calls)]
        pending = PendingEntry(entry.id, calls[0].received_ms, deadline_ms)
        pending.calls = calls
        self._offsets.proposed(entry.index, calls)
        return pending, len(entry.payload)

    def _unbuildable(self, calls: list[PendingCommands], error: Exception) -> None:
        self._contained("building an entry of commands", error)
        self._topics.barriers.lower_for(calls)
        self._offsets.refused(calls)
        for call in calls:
            call.tell(ProposeResult(Outcome.FAIL, [], None, f"nothing was written: {error}", unacceptable=True))

    def drop(self, remark: str) -> None:
        """Answers all waiting commands with FAIL, because this node no longer leads. `remark` is the reason."""
        calls, self.waiting = self.waiting, []
        for call in calls:
            call.tell(ProposeResult(Outcome.FAIL, [], None, remark))
