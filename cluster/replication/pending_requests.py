"""Keeps the requests that wait for a proposed entry, and answers them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from cluster.replication.message_batch import Built, Send
from cluster.replication.outcome import Done, Outcome, ProposeResult
from raftlog.types import EntryId
from raftlog.work import charge
from raftmq_wire.crc import crc32
from statemachine.commands import Command, name_of
from statemachine.payload import SessionRows

if TYPE_CHECKING:
    from cluster.replication.outcome import Done, ProposeResult


NAMED_PER_UNIT = 4
"""Sends whose identities are recorded in a microsecond (a unit of `raftlog.work`)."""
logger = logging.getLogger(__name__)


class SendReplies(Protocol):
    """Answers the client of a send with its outcome (see `cluster.broker.sends.send_outcomes`)."""

    def committed(self, sends: list[Send], built: Built) -> int:
        """Answers the plain sends at the beginning of an entry that is committed: it is about to be applied, and nobody
        reads the state before. Returns the number of answered sends."""

    def stored(self, sends: list[Send], built: Built, muted: set[int]) -> None:
        """Answers sends that are committed and applied, or that may be answered earlier at their level, except those at
        the `muted` positions, which were already answered or wait longer."""

    def stored_before(self, send: Send, topic_id: int, queue_id: int, queue_offset: int, position: int) -> None:
        """Answers a repeated send whose message the log already contains."""

    def refused(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, or is proved lost."""

    def crowded(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because more sends arrive than the log takes."""

    def limited(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because its owner is over a quota."""

    def unbuildable(self, send: Send, remark: str) -> None:
        """Answers a send that was never proposed, because no entry could be made of it: a bug of this node that the
        request triggered."""

    def unknown(self, send: Send, remark: str) -> None:
        """Answers a send that was proposed: it is not decided, or not on every voter's disk, in time, or it came again
        and only one of the two can wait."""


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
        """Calls the caller back with the result, at the first call only: after UNKNOWN the caller is not told the log's
        decision. An exception in the callback is logged and does not stop the node, because the outcome in the log is
        the same."""
        if self.told:
            return
        self.told = True
        try:
            self._done(result)
        except Exception:
            logger.exception("a waiter for %s failed", [name_of(type(command)) for command in self.commands])


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
        """The time at which the first of the requests came that have no answer; it may be too early, but never too
        late."""
        self.patience_ms = patience_ms
        self.sends: list[Send] = []
        self.built: Built | None = None
        self.calls: list[PendingCommands] = []
        self.effects = False
        """True if offsets or ends of sessions are in the entry, besides its sends."""
        self.proposed_s = 0.0
        self.answered = False
        """True once all requests have been answered, some with UNKNOWN, while the entry itself is undecided."""
        self.muted: set[int] = set()
        """Positions in `sends` of sends that must not be answered with the others: they have been answered (early, or
        with UNKNOWN), or wait for every voter's disk."""
        self.behind: Callable[[], None] | None = None
        """Releases later requests, which wait until the entry's sends are answered; None if there are none."""
        self.places: dict[tuple[bytes, int], int] | None = None
        """(id of the session, sequence) -> position in `sends`, once a repetition was looked for. None before. A
        repetition that replaces a send has the same identity."""


def overdue(entry: PendingEntry, now_ms: int) -> tuple[list[int], list[PendingCommands], int | None]:
    """Returns the requests without an answer that have waited long enough: positions of sends, and calls. Each request
    has its own deadline, because a new one may share an entry with one that has waited for seconds. The third value is
    the time at which the first of the remaining requests arrived; None if none remain."""
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
    """Releases the requests that wait behind the entry's sends, because these have been answered."""
    behind, entry.behind = entry.behind, None
    if behind is not None:
        behind()


def tell_calls(entry: PendingEntry, calls: list[PendingCommands], outcome: Outcome, remark: str) -> None:
    """Tells the callers of an entry's commands that these failed, or that their outcome is unknown."""
    for call in calls:
        call.tell(ProposeResult(outcome, [], entry.id, remark))


StrictName = tuple[int, int, int]
"""(topic id, hash of owner, key and body, CRC of the body) of a send to a topic with dedup=strict."""


class StrictNames:
    """Undecided sends to topics with dedup=strict, and the requests that wait for them. Each send has a StrictName,
    which consists of the same values as its unique row."""

    def __init__(self, soon: Callable[[Callable[[bool], None], bool], object]) -> None:
        """`soon` calls a function with its argument in a later turn of the loop."""
        self._soon = soon
        self.names: set[StrictName] = set()
        """The name of each such send. Empty if no topic uses strict dedup: check before a call."""
        self._waiting: dict[StrictName, list[tuple[int, Callable[[bool], None]]]] = {}
        """Name -> (time until which a request waits, its callback) of each request that waits for that send."""

    def find(self, send: Send, hashes: Iterable[int]) -> StrictName | None:
        """Returns the name of an undecided send that has the topic and the body of `send`, and one of `hashes`; None if
        there is none."""
        topic_id, _, body_crc = _strict_name(send)
        return next((name for each in hashes if (name := (topic_id, each, body_crc)) in self.names), None)

    def wait(self, name: StrictName, until_ms: int, told: Callable[[bool], None]) -> None:
        """Calls `told` in a later turn: with True once the named send is decided, or with False after `until_ms` if it
        is still undecided."""
        self._waiting.setdefault(name, []).append((until_ms, told))

    def add(self, send: Send) -> None:
        """Adds a send that was queued."""
        self.names.add(_strict_name(send))

    def decided(self, sends: list[Send]) -> None:
        """Removes sends that are stored, or never will be, and calls back the requests that wait for them."""
        if self.names:
            gone = [_strict_name(send) for send in sends if send.slot.dedup == "strict" and send.effect is None]
            self.names.difference_update(gone)
            if self._waiting:
                for _, told in [each for name in gone for each in self._waiting.pop(name, ())]:
                    self._soon(told, True)

    def expire(self, now_ms: int) -> None:
        """Calls back, with False, the requests whose time to wait is over."""
        for name, waiting in list(self._waiting.items()):
            late = [each for each in waiting if each[0] <= now_ms]
            for each in late:
                waiting.remove(each)
                self._soon(each[1], False)
            if not waiting:
                del self._waiting[name]


def _strict_name(send: Send) -> StrictName:
    return send.slot.topic_id, send.content, crc32(send.body)
