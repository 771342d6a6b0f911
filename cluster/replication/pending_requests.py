"""The requests that wait for a proposed entry, and how each is answered."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from cluster.replication.message_batch import Built, Send
from cluster.replication.outcome import Done, Outcome, ProposeResult
from raftlog.types import EntryId, EntryType
from raftlog.work import charge
from raftmq_wire.crc import crc32
from statemachine import payload
from statemachine.cluster_wide.closed_log import CloseBrokerGroup
from statemachine.cluster_wide.truth_journal import TruthKind
from statemachine.commands import Command, join, name_of, pack_bare, pack_change
from statemachine.consuming.groups import PutGroup
from statemachine.payload import SessionRows
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import QUEUES_DEFAULT, CreateTopic
from statemachine.truth import CopyTruth

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from cluster.replication.outcome import Done, ProposeResult
    from statemachine.broker_state import BrokerState


NAMED_PER_UNIT = 4
"""Sends whose names are put down in a microsecond (a unit of `raftlog.work`)."""
_MAKES = (CreateTopic, PutGroup)
Making = type[CreateTopic | PutGroup]
_KINDS: dict[Making, tuple[str, str]] = {
    CreateTopic: ("topics", "topics_max"),
    PutGroup: ("groups", "groups_max"),
}
New = set[tuple[Making, str]]
"""The topics and groups that commands create: (class of the command, name)."""


class NameLimits:
    """Enforces the limits on topics, queues and groups: counts existing ones and those being created."""

    def __init__(self, limits: LimitsSection, state: BrokerState) -> None:
        self._limits = limits
        self._state = state
        self._coming: New = set()
        self._coming_of = Counter[Making]()
        """Class of commands -> number of topics or groups that pending commands of that class create."""
        self._coming_queues = 0

    def reload(self, limits: LimitsSection) -> None:
        """Applies changed limits."""
        self._limits = limits

    def admit(self, commands: list[Command], done: Done) -> Done:
        """Checks the limits for these commands. Returns `done`, or a wrapper of it that also records the end of their
        creations. Raises UnacceptableError."""
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
        """Returns the number of queues that the commands add, at most. A queue count that is no number is refused
        elsewhere."""
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


logger = logging.getLogger(__name__)

COMMANDS_BYTES_MAX = 4 << 20
"""The largest encoding of one caller's commands, in bytes: a fraction of the longest frame, and more than any honest
request needs."""


class UnacceptableError(ValueError):
    """No entry can hold the request."""


def encode(commands: list[Command]) -> bytes:
    """Returns the commands in the encoding of an entry. Raises UnacceptableError if no entry can hold them."""
    try:
        packed = pack_bare(commands)
    except (ValueError, OverflowError, TypeError) as error:
        raise UnacceptableError(f"the request cannot be made an entry of the log: {error}") from None
    if len(packed) > COMMANDS_BYTES_MAX:
        raise UnacceptableError(f"the request takes {len(packed)} bytes in the log, {COMMANDS_BYTES_MAX} are allowed")
    return packed


class SendReplies(Protocol):
    """Answers the client of a send with its outcome (see `cluster.broker.sends.send_outcomes`)."""

    def committed(self, sends: list[Send], built: Built) -> int:
        """Answers the plain sends in front of an entry that is committed, and applied before anything else happens.
        Returns their number."""

    def stored(self, sends: list[Send], built: Built, muted: set[int]) -> None:
        """Answers sends that are committed and applied, except those at the `muted` positions, which were already
        answered or wait longer."""

    def stored_before(self, send: Send, topic_id: int, queue_id: int, queue_offset: int, position: int) -> None:
        """Answers a repeated send whose message the log already contains."""

    def refused(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, or is proved lost."""

    def crowded(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because more arrive than the log takes."""

    def limited(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because its owner is over a quota."""

    def unbuildable(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because no entry could be made of it: a bug of this node that the
        request triggered."""

    def unknown(self, send: Send, remark: str) -> None:
        """Answers a send that was proposed and is undecided at the deadline."""


class PendingCommands:
    """One caller's commands; several callers may share a COMMAND entry."""

    __slots__ = ("_done", "author", "commands", "packed", "received_ms", "session", "told")

    def __init__(
        self,
        commands: list[Command],
        packed: bytes,
        done: Done,
        received_ms: int,
        session: SessionRows | None = None,
        author: str = "",
    ) -> None:
        """`packed`: the result of `encode`, which is proposed. `session`: goes into the log with the commands, so that
        any later leader recognises them when they are repeated. `author`: goes into the log too, in a CHANGE entry."""
        self.author = author
        self.session = session
        self.commands = commands
        self.packed = packed
        self.received_ms = received_ms
        self.told = False
        """True once the caller has its result."""
        self._done = done

    def tell(self, result: ProposeResult) -> None:
        """Calls the caller back with the result, once: after an UNKNOWN it does not wait for the log's decision. An
        exception in the callback must not stop the node: the outcome in the log is the same."""
        if self.told:
            return
        self.told = True
        try:
            self._done(result)
        except Exception:
            logger.exception("a waiter for %s failed", [name_of(type(command)) for command in self.commands])


def cut_calls(calls: list[PendingCommands], bytes_max: int) -> list[PendingCommands]:
    """Returns the first calls, as many as one entry should hold by size: a frame has a limit, and many large requests
    may arrive together. Either all of them have a session, or none, and all have one author."""
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


class PendingEntry:
    """A proposed entry, and the requests that wait for it."""

    __slots__ = (
        "answered",
        "arrived_ms",
        "behind",
        "built",
        "calls",
        "effects",
        "id",
        "muted",
        "patience_ms",
        "places",
        "proposed_s",
        "sends",
    )

    def __init__(self, entry_id: EntryId, arrived_ms: int, patience_ms: int) -> None:
        """`arrived_ms`: the time at which the first of its requests came. `patience_ms`: how long each waits."""
        self.id = entry_id
        self.arrived_ms = arrived_ms
        """The time at which the first of the requests came that have no answer; it may be older than that one."""
        self.patience_ms = patience_ms
        self.sends: list[Send] = []
        self.built: Built | None = None
        self.calls: list[PendingCommands] = []
        self.effects = False
        """True if offsets or ends of sessions are in the entry, besides its sends."""
        self.proposed_s = 0.0
        self.answered = False
        """True once all requests were answered, the last of them with UNKNOWN; the entry itself still waits for the
        log's decision."""
        self.muted: set[int] = set()
        """Positions in `sends` of sends that must not be answered with the others: they have been answered (early, or
        with UNKNOWN), or wait for every voter's disk."""
        self.behind: Callable[[], None] | None = None
        """Lets requests go on that came after its sends and wait until the fate of these is told; None if there are
        none."""
        self.places: dict[tuple[bytes, int], int] | None = None
        """(id of the session, sequence) -> position in `sends`, once a repetition was looked for. A repetition that
        takes the place of a send has its identity."""


def overdue(entry: PendingEntry, now_ms: int) -> tuple[list[int], list[PendingCommands], int | None]:
    """Returns the requests without an answer that have waited long enough: positions of sends, and calls. Each has its
    own time: what comes last may share an entry with what has waited for seconds. The third is the time at which the
    first of the others came; None if there are none."""
    charge(1 + len(entry.sends) // NAMED_PER_UNIT)
    before_ms = now_ms - entry.patience_ms
    sends = [(at, send.received_ms) for at, send in enumerate(entry.sends) if at not in entry.muted]
    calls = [call for call in entry.calls if not call.told]
    came = [came_ms for _, came_ms in sends] + [call.received_ms for call in calls]
    return (
        [at for at, came_ms in sends if came_ms <= before_ms],
        [call for call in calls if call.received_ms <= before_ms],
        min([came_ms for came_ms in came if came_ms > before_ms], default=None),
    )


def place_of(entry: PendingEntry, producer_id: bytes, sequence: int) -> int | None:
    """Returns the position of the send with this identity in its entry; None if it is not there."""
    if entry.places is None:
        charge(1 + len(entry.sends) // NAMED_PER_UNIT)
        entry.places = {(send.producer_id, send.sequence): at for at, send in enumerate(entry.sends)}
    return entry.places.get((producer_id, sequence))


def let_go_on(entry: PendingEntry) -> None:
    """Lets the requests continue that wait behind the entry's sends, because these have been answered."""
    behind, entry.behind = entry.behind, None
    if behind is not None:
        behind()


def tell_calls(entry: PendingEntry, calls: list[PendingCommands], outcome: Outcome, remark: str) -> None:
    """Passes to the callers of an entry's commands that these failed, or that their outcome is unknown."""
    for call in calls:
        call.tell(ProposeResult(outcome, [], entry.id, remark))


StrictName = tuple[int, int, int]
"""(topic id, hash of owner, key and body, CRC of the body) of a send to a topic with dedup=strict."""


class StrictNames:
    """Undecided sends to topics with dedup=strict, identified as their unique rows are, and who waits for them."""

    def __init__(self, soon: Callable[[Callable[[bool], None], bool], object]) -> None:
        """`soon` calls a function with its argument in a later turn of the loop."""
        self._soon = soon
        self.names: set[StrictName] = set()
        """The name of each such send. Empty if no topic uses strict dedup: check before a call."""
        self._waiting: dict[StrictName, list[tuple[int, Callable[[bool], None]]]] = {}
        """Name -> (time until which it waits, what is told the end of that) of each request that waits for it."""

    def find(self, send: Send, hashes: Iterable[int]) -> StrictName | None:
        """Returns the name of an undecided send whose hash is one of `hashes`; None if there is none."""
        topic_id, _, body_crc = _strict_name(send)
        return next((name for each in hashes if (name := (topic_id, each, body_crc)) in self.names), None)

    def wait(self, name: StrictName, until_ms: int, told: Callable[[bool], None]) -> None:
        """Calls `told` in a later turn with True once the send is decided, or with False at that time if it is not."""
        self._waiting.setdefault(name, []).append((until_ms, told))

    def add(self, send: Send) -> None:
        """Adds a send that was queued."""
        self.names.add(_strict_name(send))

    def decided(self, sends: list[Send]) -> None:
        """Removes sends that are stored, or never will be."""
        if self.names:
            gone = [_strict_name(send) for send in sends if send.slot.dedup == "strict" and send.effect is None]
            self.names.difference_update(gone)
            if self._waiting:
                for _, told in [each for name in gone for each in self._waiting.pop(name, ())]:
                    self._soon(told, True)

    def expire(self, now_ms: int) -> None:
        """Ends the waits that have reached their deadline."""
        for name, waiting in list(self._waiting.items()):
            late = [each for each in waiting if each[0] <= now_ms]
            for each in late:
                waiting.remove(each)
                self._soon(each[1], False)
            if not waiting:
                del self._waiting[name]


def _strict_name(send: Send) -> StrictName:
    return send.slot.topic_id, send.content, crc32(send.body)


class TopicBarriers:
    """Topics with a change that is proposed and not applied: sends to them wait behind the change."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._of_all = 0
        """The commands in flight after which no topic may take a message: each one is a barrier of all topics."""

    def __bool__(self) -> bool:
        return bool(self._count or self._of_all)

    def __contains__(self, topic: object) -> bool:
        return topic in self._count or self._of_all > 0

    def raise_for(self, commands: list[Command]) -> list[str]:
        """Raises the barrier of every topic that the commands change; returns these topics."""
        self._of_all += closes(commands)
        names = [name for command in commands for name in _topics_of(command)]
        for name in names:
            self._count[name] = self._count.get(name, 0) + 1
        return names

    def lower_for(self, calls: Iterable[PendingCommands]) -> None:
        """Lowers the barriers of these calls, whose changes were applied, are lost, or were not proposed after all."""
        for call in calls:
            self._of_all = max(0, self._of_all - closes(call.commands))
            for command in call.commands:
                for name in _topics_of(command):
                    left = self._count.pop(name, 0) - 1
                    if left > 0:
                        self._count[name] = left

    def clear(self) -> None:
        """Lowers all barriers: in a new term of leadership nothing is in flight."""
        self._count.clear()
        self._of_all = 0


def closes(commands: Iterable[Command]) -> int:
    """Returns how many of the commands close the log."""
    return sum([isinstance(command, CloseBrokerGroup) for command in commands])


def _topics_of(command: Command) -> list[str]:
    """Returns the topics that a command changes, or may change."""
    if isinstance(command, CreateTopic):
        return [str(command.config["name"])]
    if isinstance(command, DeleteTopic):
        return [command.name]
    if isinstance(command, CopyTruth):
        return [str(name) for kind, name, _ in command.rows if kind == TruthKind.TOPIC]
    return []
