"""Half messages: stored, but in no queue until their transaction ends (docs/adr/0050).

A half message is a row from the entry that stored it to the entry that ends its transaction. The entry that commits it
also contains the copy for its queue, so no replica ever has one without the other. Times are log time, stamped by the
leader: apply compares numbers and reads no clock.

From level 13 of the cluster on, a half message that an authenticated user sent has a row with the user's id. That user
may end the transaction without a right to the topic.

A half message is named by the position at which it was first stored, which its producer knows. It keeps that name when
the message is carried forward (docs/adr/0054), that is, stored again at a later position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from statemachine.commands import U64, Command, CommandResult, NumberFrom1, done
from statemachine.family import Family, LaterRows, Reads, applies, family_of
from statemachine.levels import OWNERS_LEVEL
from statemachine.payload import ITEM
from statemachine.queue_reads import QueueItem
from statemachine.rows import keys
from statemachine.rows.kv import KV, TRANS
from statemachine.rows.write_batch import Stage

Positions = Annotated[Sequence[U64], Meta(min_length=1)]
"""The positions at which half messages were first stored."""


class EndHalves(Command, tag="end_halves", frozen=True):
    """Ends the transactions of these half messages. If a transaction is committed, the same entry contains the
    message's copy for its queue."""

    positions: Positions


class CheckHalves(Command, tag="check_halves", frozen=True):
    """Records that the broker now asks the producers for the outcome of these transactions, and will ask again at
    `next_ms` of log time."""

    next_ms: U64
    positions: Positions


class OwnHalves(Command, tag="own_halves", frozen=True):
    """Records the users who sent half messages of the same entry: [(position, user id), ...]."""

    LEVEL: ClassVar[int] = OWNERS_LEVEL
    owners: Sequence[tuple[U64, NumberFrom1]]


class HalfMessage(NamedTuple):
    """A message whose transaction is open."""

    position: int
    """The position in the log of the message's first byte when it was first stored. It names the half message, as the
    offset in RocketMQ's half queue does."""
    topic_id: int
    queue_id: int
    """The queue that gets a copy of the message if its transaction is committed."""
    size: int
    crc32c: int
    """CRC-32C of the stored message's bytes."""
    check_ms: int
    """Log time at which the producer is next asked for the outcome of the transaction."""
    checks: int
    """The number of times that the producer was asked for the outcome so far."""
    moved_to: int | None = None
    """The present position of the message's first byte, if the message was carried forward; otherwise None."""

    @property
    def place(self) -> int:
        """The present position of the message's first byte. The log must be kept from there on."""
        return self.position if self.moved_to is None else self.moved_to

    @property
    def stored(self) -> QueueItem:
        """The message's present position and size in the form of a queue's item, for reading it. The queue offset, tag
        and store time are 0: the message is in no queue."""
        return QueueItem(0, self.place, self.size, self.crc32c, 0, 0)


class Pending(NamedTuple):
    """The number and the total size of all open half messages."""

    count: int  # type: ignore[assignment]
    bytes: int


class HalfMessages(Family):
    """All open half messages, as rows of the family `trans`. Any thread may use `pending`, `check_ms` and the methods
    that take no `Stage`, except `publish`: they show what is written."""

    ROWS = ((TRANS, b"p"), (TRANS, b"c"), (TRANS, b"m"), (TRANS, b"d"), (TRANS, b"o"), (TRANS, b"n"))
    LATER_ROWS = (LaterRows(OWNERS_LEVEL, TRANS, b"o"),)

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        row = kv.get(TRANS, keys.HALF_PENDING_KEY)
        self.pending = self._staged = Pending(0, 0) if row is None else Pending(*keys.HALF_PENDING.unpack(row))
        self.check_ms: int | None = self._first_check(0)
        """The earliest `HalfMessage.check_ms`; None if no transaction is open. An idle leader looks at nothing else."""
        self._added_ms: int | None = None
        """The earliest check time that the batch being applied has added; None if it added none."""
        self._first_gone = False
        """True if the batch being applied has removed a row with the check time `check_ms` or `_added_ms`, so that the
        earliest check time has to be searched for."""

    # -- any thread

    def get(self, position: int) -> HalfMessage | None:
        """Returns the open half message that was first stored at `position`; None if there is none."""
        row = self._kv.get(TRANS, keys.half_key(position)) or self._kv.get(TRANS, keys.half_carried_key(position))
        return None if row is None else _half(position, row)

    def owner(self, name: int) -> int:
        """Returns the id of the user who sent the half message `name`; 0 if nobody is recorded."""
        row = self._kv.get(TRANS, keys.half_owner_key(name))
        return 0 if row is None else int(keys.U64.unpack(row)[0])

    def at(self, position: int) -> HalfMessage | None:
        """Returns the open half message that lies at `position` now, or was first stored there; None if there is
        none."""
        name = self._kv.get(TRANS, keys.half_moved_key(position))
        return self.get(position if name is None else keys.U64.unpack(name)[0])

    def pinned(self, first: int, end: int) -> Iterator[HalfMessage]:
        """Yields the open half messages that lie at `first` or above and below `end`, lowest first."""
        if first < end:
            unmoved = ((keys.half_position(key),) * 2 for key, _ in self._kv.scan(TRANS, *keys.half_range(first, end)))
            moved = self._kv.scan(TRANS, *keys.half_moved_range(first, end))
            others = ((keys.half_position(key), keys.U64.unpack(name)[0]) for key, name in moved)
            for _, name in merge(unmoved, others):
                half = self.get(name)
                if half is not None:  # otherwise its transaction ended since the scan began
                    yield half

    def due(self, now_ms: int, count_max: int, after: HalfMessage | None = None) -> list[HalfMessage]:
        """Returns up to `count_max` half messages whose producers must be asked by `now_ms`, in the order of their
        check times. With `after`, only those after that one, even if it has ended in the meantime."""
        found: list[HalfMessage] = []
        first_ms = self.check_ms
        if first_ms is None or first_ms > now_ms:
            return found
        start, end = keys.half_check_range(first_ms, now_ms)
        if after is not None:
            start = max(start, keys.half_check_key(after.check_ms, after.position) + b"\0")
        for key, _ in self._kv.scan(TRANS, start, end) if start < end else ():
            half = self.get(keys.half_check_position(key))
            if half is not None:  # otherwise its transaction ended since the scan began
                found.append(half)
                if len(found) == count_max:
                    break
        return found

    def lowest_position(self) -> int | None:
        """Returns the lowest position at which an open half message lies; None if there is none. The log must be kept
        from there on."""
        first = (
            self._kv.first(TRANS, *keys.half_range(0, keys.U64_MAX)),
            self._kv.first(TRANS, *keys.half_moved_range(0, keys.U64_MAX)),
        )
        return min([keys.half_position(row[0]) for row in first if row is not None], default=None)

    def pinned_position(self, begin: int, end: int) -> int | None:
        """Returns `lowest_position`, whatever the bounds (`Family.pinned_position`)."""
        return self.lowest_position()

    # -- apply

    def add(self, stage: Stage, topic_id: int, queue_id: int, check_ms: int, items: bytes) -> None:
        """Opens a transaction for each half message in `items`. Their producer is first asked for the outcome at
        `check_ms`."""
        count = size_all = 0
        for position, size, crc32c, _, _ in ITEM.iter_unpack(items):
            stage.put_new(TRANS, keys.half_key(position), keys.HALF.pack(topic_id, queue_id, size, crc32c, check_ms, 0))
            stage.put_new(TRANS, keys.half_check_key(check_ms, position), b"")
            count, size_all = count + 1, size_all + size
        self._note_check(check_ms)
        self._count(stage, count, size_all)

    @applies(OwnHalves)
    def own(self, stage: Stage, command: OwnHalves) -> CommandResult:
        """Records the users who sent half messages. The result's value is the number of half messages for which a user
        was recorded."""
        for position, user in command.owners:
            stage.put(TRANS, keys.half_owner_key(position), keys.U64.pack(user))
        return done(len(command.owners))

    def carry(self, stage: Stage, name: int, items: bytes) -> None:
        """Records the new position of the half message `name`, which was carried forward; `items` is one item. Changes
        nothing if its transaction has ended."""
        half = self._staged_half(stage, name)
        if half is None or len(items) != ITEM.size:
            return
        place, size, crc32c, _, _ = ITEM.unpack(items)
        if half.moved_to is None:
            stage.delete(TRANS, keys.half_key(name))
        else:
            stage.unput(TRANS, keys.half_moved_key(half.moved_to))
        stage.put_new(TRANS, keys.half_moved_key(place), keys.U64.pack(name))
        self._put(stage, half._replace(size=size, crc32c=crc32c, moved_to=place))
        self._count(stage, 0, size - half.size)

    @applies(EndHalves)
    def end(self, stage: Stage, command: EndHalves) -> CommandResult:
        """Ends the transactions of these half messages. The result's value is the number of those that were open."""
        ended = 0
        for position in command.positions:
            half = self._staged_half(stage, position)
            if half is None:
                continue
            self._drop(stage, half)
            self._drop_check(stage, half)
            self._count(stage, -1, -half.size)
            ended += 1
        return done(ended)

    @applies(CheckHalves)
    def check(self, stage: Stage, command: CheckHalves) -> CommandResult:
        """Counts a check of these half messages, and sets the time of the next one. The result's value lists the
        positions of those that are open."""
        next_ms, asked = command.next_ms, []
        for position in command.positions:
            half = self._staged_half(stage, position)
            if half is None:
                continue
            self._drop_check(stage, half)
            self._put(stage, half._replace(check_ms=next_ms, checks=min(half.checks + 1, keys.U32_MAX)))
            stage.put(TRANS, keys.half_check_key(next_ms, position), b"")
            self._note_check(next_ms)
            asked.append(position)
        return done(asked)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        if self._added_ms is not None or self._first_gone:
            earliest = min([ms for ms in (self.check_ms, self._added_ms) if ms is not None], default=None)
            if self._first_gone and earliest is not None:
                # Rows with the earliest times are removed first. A scan from the first key of all would pass all
                # removed keys, so it begins at `earliest`.
                earliest = self._first_check(earliest)
            self.check_ms = earliest
            self._added_ms, self._first_gone = None, False
        self.pending = self._staged

    # -- internal methods

    def _first_check(self, from_ms: int) -> int | None:
        for key, _ in self._kv.scan(TRANS, *keys.half_check_range(from_ms, keys.U64_MAX)):
            return keys.half_check_ms(key)
        return None

    def _staged_half(self, stage: Stage, position: int) -> HalfMessage | None:
        row = stage.get(TRANS, keys.half_key(position)) or stage.get(TRANS, keys.half_carried_key(position))
        return None if row is None else _half(position, row)

    def _put(self, stage: Stage, half: HalfMessage) -> None:
        row = keys.HALF.pack(*half[1:-1])
        if half.moved_to is None:
            stage.put(TRANS, keys.half_key(half.position), row)
        else:
            stage.put(TRANS, keys.half_carried_key(half.position), row + keys.U64.pack(half.moved_to))

    def _drop(self, stage: Stage, half: HalfMessage) -> None:
        if half.moved_to is None:
            stage.delete(TRANS, keys.half_key(half.position))
        else:
            stage.delete(TRANS, keys.half_carried_key(half.position))
            stage.unput(TRANS, keys.half_moved_key(half.moved_to))
        owner = keys.half_owner_key(half.position)
        if stage.get(TRANS, owner) is not None:
            stage.delete(TRANS, owner)

    def _drop_check(self, stage: Stage, half: HalfMessage) -> None:
        stage.delete(TRANS, keys.half_check_key(half.check_ms, half.position))
        self._first_gone = self._first_gone or half.check_ms == self.check_ms or half.check_ms == self._added_ms

    def _note_check(self, check_ms: int) -> None:
        self._added_ms = check_ms if self._added_ms is None else min(self._added_ms, check_ms)

    def _count(self, stage: Stage, count: int, size: int) -> None:
        self._staged = Pending(self._staged.count + count, self._staged.bytes + size)
        stage.put(TRANS, keys.HALF_PENDING_KEY, keys.HALF_PENDING.pack(*self._staged))


class HalfReads(Reads):
    """Read access to what a state holds about transactions."""

    halves = family_of(HalfMessages)
    """Half messages, whose transactions are open."""


def _half(name: int, row: bytes) -> HalfMessage:
    half = HalfMessage(name, *keys.HALF.unpack_from(row))
    return half if len(row) == keys.HALF.size else half._replace(moved_to=keys.U64.unpack_from(row, keys.HALF.size)[0])
