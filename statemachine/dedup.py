"""The state by which the leader tells a repeated send from a new message. Apply only records it; the leader decides.

A producer session records where the message with each sequence number of a producer is stored, from the lowest sequence
that the producer has not settled (may send again). For topics with dedup=strict, unique rows record where a message
with a given key and body is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Self

from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE
from raftlog.work import charge
from raftmq_wire.kernel import shortcut
from statemachine.cluster_wide.cluster_level import ClusterLevel
from statemachine.commands import Command, CommandResult, done
from statemachine.family import Families, Family, LaterRows, Reads, applies, family_of
from statemachine.levels import SESSIONS_LEVEL
from statemachine.payload import SESSION_ROW, SessionRows, UniqueRow, session_at
from statemachine.removals import Done, Removals
from statemachine.rows import keys
from statemachine.rows.kv import DEDUP, KV
from statemachine.rows.write_batch import Stage

SESSION_WINDOW_MAX = 65_536
"""The size of a session's window in sequences: those below `max_sequence - SESSION_WINDOW_MAX` are forgotten even if
the producer never settles them."""
SESSIONS_MAX = 16_384
"""The number of sessions in memory, the most recently used ones: about 400 bytes each, and their rows. Other sessions
are read from the store when they are needed."""

ENDED_PARTS_MAX = 64
"""The most parts of a session that the entry which ends it removes at once. A session with more parts expires in
slices."""

PIECE_MAX = 64
"""The most parts in a Piece. Applying an entry copies at most one piece of a session."""

READ_PARTS = 64
"""The most parts of a session that are read in one step. A longer session that is not in memory is read in several
steps."""
READ_SESSIONS_MAX = 4
"""The number of sessions read in several steps that stay in memory, up to 16 MB each."""

LONE_ROWS_MAX = 4
"""The most session rows of a part that is stored in the producer's own row. When another part joins the session, the
first one is written again as a row of its own, which would cost too much for a longer part. All nodes must write the
same rows, so another number needs a new level of the cluster."""

_PIECES_PER_UNIT = 8
_PIECE_UNITS = 4
"""The cost of looking through one piece of a session, in units of `raftlog.work`."""
_ROW_SIZE = SESSION_ROW.size

Stored = tuple[int, int, int, int]
"""The place at which the message of a sequence is stored: (topic_id, queue_id, queue_offset, position)."""


class SessionUnreadError(Exception):
    """The producer's session has too many parts to be read in one step. The caller calls `read_session` first."""


class SessionPart(NamedTuple):
    """The session rows that one entry added to a producer's session. `rows`: the packed rows, with sequence numbers
    ascending from `low` to `high`."""

    index: int  # type: ignore[assignment]
    low: int
    high: int
    rows: bytes


class Piece(NamedTuple):
    """Consecutive parts of a session, at most PIECE_MAX."""

    low: int
    high: int
    """The highest sequence in the parts; `low` is the lowest."""
    settled_at: int
    """The sequence up to which the producer must have settled before one of the parts can be removed."""
    parts: tuple[SessionPart, ...]


class ProducerSession(NamedTuple):
    """The session of one producer at one moment. Immutable, so `find` and then `forgotten` refer to the same moment."""

    low_sequence: int
    max_sequence: int
    last_ms: int
    """Log time of the producer's last entry."""
    parts: tuple[SessionPart, ...]
    """The newest parts, at most PIECE_MAX. Most producers have no others."""
    older: tuple[Piece, ...] = ()
    """The parts before those in `parts`, ascending. Only a producer that leaves very many sequences unsettled has them.
    """
    is_lone: bool = False
    """True if the session has one part, and that part is stored in the producer's own row and not in a row of its
    own."""

    def all_parts(self) -> Iterator[SessionPart]:
        """Yields all parts, oldest first."""
        for piece in self.older:
            yield from piece.parts
        yield from self.parts

    @property
    def parts_count(self) -> int:
        """The number of parts in `older` and `parts`."""
        return len(self.parts) + sum([len(piece.parts) for piece in self.older])

    def find(self, sequence: int) -> Stored | None:
        """Returns the place of the message with this sequence; None if it was not stored, or is forgotten."""
        if self.older:
            charge(1 + len(self.older) // _PIECES_PER_UNIT)
        for piece in self.older:
            if piece.low <= sequence <= piece.high:
                charge(_PIECE_UNITS)
                if (found := _find(piece.parts, sequence)) is not None:
                    return found
        return _find(self.parts, sequence)

    def forgotten(self, sequence: int) -> bool:
        """Returns True if the session no longer records the sequence, because it is too low. Whether its message was
        stored is then unknown."""
        return sequence < self.low_sequence

    def row(self) -> bytes:
        """Returns the value of the producer's own row."""
        head = keys.PRODUCER.pack(self.low_sequence, self.max_sequence, self.last_ms)
        if not self.is_lone:
            return head
        (part,) = self.parts
        return head + keys.U64.pack(part.index) + part.rows

    def above(self, index: int, low: int) -> ProducerSession:
        """Returns the session without the parts of entries up to `index`. The new session begins at the sequence
        `low`."""
        older: list[Piece] = []
        for piece in self.older:
            if piece.parts[0].index > index:
                older.append(piece)
            elif parts := tuple([part for part in piece.parts if part.index > index]):
                older.append(_piece(parts))
        parts = tuple([part for part in self.parts if part.index > index])
        return self._replace(low_sequence=low, parts=parts, older=tuple(older))


def _find(parts: tuple[SessionPart, ...], sequence: int) -> Stored | None:
    for part in parts:
        if part.low <= sequence <= part.high:
            rows = range(len(part.rows) // _ROW_SIZE)
            at = bisect_left(rows, sequence, key=lambda row, data=part.rows: _sequence_at(data, row))  # type: ignore[misc]
            found, *stored = SESSION_ROW.unpack_from(part.rows, at * _ROW_SIZE)
            if found == sequence:
                topic_id, queue_id, queue_offset, position = stored
                return topic_id, queue_id, queue_offset, position
    return None


_KINDS = (SessionPart, ProducerSession)


class UniqueMessage(NamedTuple):
    """The place of a stored message of a topic with dedup=strict, and the log time of its entry."""

    topic_id: int
    queue_id: int
    queue_offset: int
    position: int
    time_ms: int


class EndSessions(Command, tag="end_sessions", frozen=True):
    """Forgets producers whose connection closed after all of their sends were answered."""

    producer_ids: Sequence[bytes]


class Dedup(Family):
    """All producer sessions and unique rows. They are rows in the store; the recently used sessions are in memory too.
    One thread applies. Any thread may call `session` and `unique`, and one other thread reads sessions in steps."""

    ROWS = ((DEDUP, b""),)
    LATER_ROWS = (LaterRows(SESSIONS_LEVEL, DEDUP, b"p", lambda row: len(row) > keys.PRODUCER.size),)

    def __init__(self, kv: KV, sessions_max: int = SESSIONS_MAX, level: Callable[[], int] = lambda: BASELINE) -> None:
        """`level` returns the level of the cluster at the entry that is being applied."""
        self._kv = kv
        self._level = level
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[bytes, ProducerSession] = OrderedDict()
        self._staged: dict[bytes, ProducerSession | None] = {}
        self._read: dict[bytes, ProducerSession] = {}
        """Sessions that were read in steps and that no entry has changed since, the newest last."""
        self._reading: set[bytes] = set()
        """Producers whose sessions are being read in steps and that no entry has changed since the reading began."""

    @classmethod
    def made(cls, families: Families) -> Self:
        """Makes this family of rows for one state."""
        return cls(families.kv, level=families[ClusterLevel].staged)

    def session(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the producer's session as of the last applied batch; None if the producer is unknown."""
        found = self._sessions.get(producer_id)
        return _read_session(self._kv, producer_id) if found is None else found

    def max_sequence(self, producer_id: bytes) -> int:
        """Returns the producer's highest sequence as of the last applied batch; 0 if the producer is unknown. Reads at
        most one row."""
        found = self._sessions.get(producer_id)
        if found is not None:
            return found.max_sequence
        row = self._kv.get(DEDUP, keys.producer_key(producer_id))
        return 0 if row is None else int(keys.PRODUCER.unpack_from(row)[1])

    def session_at_hand(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the producer's session in one short step. Raises SessionUnreadError if the session is too long for
        that; the caller then calls `read_session` first."""
        found = self._sessions.get(producer_id) or self._read.get(producer_id)
        return _read_session(self._kv, producer_id, READ_PARTS) if found is None else found

    def read_session(self, producer_id: bytes) -> Iterator[None]:
        """Reads a session into memory for `session_at_hand`, READ_PARTS parts per step. Ends early if an applied entry
        changes the session, because that brings it into memory as well."""
        key = keys.producer_key(producer_id)
        self._reading.add(producer_id)
        try:
            row = self._kv.get(DEDUP, key)
            while row is not None:
                if (lone := _lone(row)) is not None:
                    self._keep_read(producer_id, lone)
                    return
                parts: list[SessionPart] = []
                pieces: list[Piece] = []
                for name, rows in self._kv.scan(DEDUP, *keys.sessions_of(producer_id)):
                    if len(parts) == READ_PARTS:
                        pieces.append(_piece(tuple(parts)))
                        parts = []
                        yield
                        if producer_id not in self._reading:
                            return
                    parts.append(_part(keys.parse_session_key(name)[1], rows))
                again = self._kv.get(DEDUP, key)
                if again == row:
                    low, high, last_ms = keys.PRODUCER.unpack(row)
                    self._keep_read(producer_id, ProducerSession(low, high, last_ms, tuple(parts), tuple(pieces)))
                    return
                row = again
                yield
        finally:
            self._reading.discard(producer_id)

    def _keep_read(self, producer_id: bytes, session: ProducerSession) -> None:
        for name in list(self._read)[: 1 - READ_SESSIONS_MAX]:
            self._read.pop(name, None)
        self._read[producer_id] = session
        # checked last, because `publish` removes the producer from `_reading` before it removes from `_read`
        if producer_id not in self._reading:
            self._read.pop(producer_id, None)

    def unique(self, topic_id: int, key_hash: int, body_crc: int) -> UniqueMessage | None:
        """Returns the place of the message with this key and body, as of the last applied batch; None if there is
        none."""
        value = self._kv.get(DEDUP, keys.unique_key(topic_id, key_hash, body_crc))
        return None if value is None else UniqueMessage(topic_id, *keys.UNIQUE_VALUE.unpack(value))

    def add_sessions(self, stage: Stage, data: bytes, index: int, time_ms: int) -> None:
        """Adds the rows that entry `index` stored for each producer to its session, and forgets the sequences that the
        producer has settled. `data`: the packed sessions of the entry. Raises PayloadError if they are cut."""
        at, end = 0, len(data)
        rows, before = stage.rows[DEDUP], stage.before[DEDUP]
        lone_bytes = LONE_ROWS_MAX * _ROW_SIZE if self._level() >= SESSIONS_LEVEL else 0
        limits = PIECE_MAX, lone_bytes
        while True:
            at = add_sessions(data, at, index, time_ms, self._staged, self._sessions, rows, before, _KINDS, limits)
            if at == end:
                return
            session, at = session_at(data, at)
            self._add_session(stage, session, index, time_ms, lone_bytes)

    def _add_session(self, stage: Stage, new: SessionRows, index: int, time_ms: int, lone_bytes: int) -> None:
        producer_id = new.producer_id
        is_new = producer_id not in self._staged
        old = self._current(producer_id)
        parts: tuple[SessionPart, ...] = ()
        older: tuple[Piece, ...] = ()
        low, high = new.low_sequence, new.max_sequence
        if old is not None:
            parts, older = old.parts, old.older
            low, high = max(low, old.low_sequence), max(high, old.max_sequence)
        low = max(low, high - SESSION_WINDOW_MAX)
        was_lone = old is not None and old.is_lone
        added: tuple[SessionPart, ...] = ()
        if new.rows:
            if parts and parts[-1].index == index:
                raise InvariantViolationError(f"two sessions of one producer in entry {index}")
            if len(parts) == PIECE_MAX:
                parts, older = (), (*older, _piece(parts))
            part = _part(index, new.rows)
            added = (part,) if part.high >= low else ()
        if not was_lone:
            for part in parts:
                if part.high < low:
                    stage.unput(DEDUP, keys.session_key(producer_id, part.index), part.rows)
        kept = tuple([part for part in parts if part.high >= low])
        if older:
            older = _settle_older(stage, producer_id, older, low)
        # A short first part is stored in the producer's own row, until it is settled or another part joins it. Then it
        # gets a row of its own, which is never written again.
        parts = kept + added
        is_lone = len(parts) == 1 and not older and (len(added[0].rows) <= lone_bytes if added else was_lone)
        if not is_lone:
            for part in parts if was_lone else added:
                stage.put_new(DEDUP, keys.session_key(producer_id, part.index), part.rows)
        session = ProducerSession(low, high, time_ms, parts, older, is_lone)
        if old is not None and is_new:
            stage.replace(DEDUP, keys.producer_key(producer_id), session.row(), old.row())
        else:
            stage.put(DEDUP, keys.producer_key(producer_id), session.row())
        self._staged[producer_id] = session

    def add_unique(self, stage: Stage, row: UniqueRow, time_ms: int) -> None:
        """Records where a message of a topic with dedup=strict is stored. A later message with equal key and body
        replaces the row."""
        name = (row.topic_id, row.key_hash, row.body_crc)
        value = keys.UNIQUE_VALUE.pack(row.queue_id, row.queue_offset, row.position, time_ms)
        stage.put(DEDUP, keys.unique_key(*name), value)
        stage.put(DEDUP, keys.unique_time_key(time_ms, *name), b"")

    def remove_topic(self, stage: Stage, topic_id: int, at: bytes, rows_max: int) -> Done:
        """Removes at most `rows_max` unique rows of a deleted topic, from the key `at` on, and returns how far it came.
        The batch must contain nothing else."""
        start, end = keys.unique_topic_range(topic_id)
        used = 0
        for key, row in self._kv.scan(DEDUP, max(start, at), end):
            if used == rows_max:
                return Done(used, key)
            used += 1
            _take(stage, key, row)
        return Done(used, None)

    def expire_sessions(self, stage: Stage, before_ms: int, at: bytes, rows_max: int) -> Done:
        """Removes the sessions of producers that have been idle since before `before_ms`. Walks over at most `rows_max`
        rows from the key `at` on, and returns how far it came. If a producer has more rows than that, its lowest
        sequences are removed first."""
        start, end = keys.PRODUCERS
        used = 0
        for key, row in self._kv.scan(DEDUP, max(start, at), end):
            if used >= rows_max:
                return Done(used, key)
            used += 1
            if keys.PRODUCER.unpack_from(row)[2] < before_ms:
                used, whole = self._expire_session(stage, key, row, used, rows_max)
                if not whole:
                    return Done(used, key)
        return Done(used, None)

    def _expire_session(self, stage: Stage, key: bytes, row: bytes, used: int, rows_max: int) -> tuple[int, bool]:
        """Removes rows of an idle producer's session until the slice has visited `rows_max` rows. Returns the number of
        rows visited so far, and True if all of the session was removed."""
        producer_id = key[1:]
        low, high, last_ms = keys.PRODUCER.unpack_from(row)
        last = -1
        for name, rows in self._kv.scan(DEDUP, *keys.sessions_of(producer_id)):
            if used == rows_max:
                if last >= 0:
                    stage.put(DEDUP, key, keys.PRODUCER.pack(low, high, last_ms))
                    known = self._sessions.get(producer_id)
                    if known is not None:
                        self._staged[producer_id] = known.above(last, low)
                return used, False
            used += 1
            _take(stage, name, rows)
            part = _part(keys.parse_session_key(name)[1], rows)
            low, last = max(low, part.high + 1), part.index
        _take(stage, key, row)
        self._staged[producer_id] = None
        return used, True

    def expire_unique(self, stage: Stage, before_ms: int, at: bytes, rows_max: int) -> Done:
        """Removes unique rows written before `before_ms`. Walks over at most `rows_max` rows from the key `at` on, and
        returns how far it came."""
        start, end = keys.unique_time_range(before_ms)
        used = 0
        for key, value in self._kv.scan(DEDUP, max(start, at), end):
            if used >= rows_max:
                return Done(used, key)
            used += 2
            _take(stage, key, value)
            row_key, time_ms = keys.unique_key_of_time_key(key)
            row = stage.get(DEDUP, row_key)
            if row is not None and keys.UNIQUE_VALUE.unpack(row)[3] == time_ms:
                _take(stage, row_key, row)
        return Done(used, None)

    @applies(EndSessions)
    def end(self, stage: Stage, command: EndSessions) -> CommandResult:
        """Removes the sessions of these producers; unknown producers are ignored. A session with more than
        ENDED_PARTS_MAX parts is marked as settled and long idle instead, so that `expire_sessions` removes it. The
        result's value is the number of known producers."""
        known = 0
        for producer_id in command.producer_ids:
            session = self._current(producer_id)
            if session is not None:
                if session.parts_count > ENDED_PARTS_MAX:
                    self._settle(stage, producer_id, session)
                else:
                    self._forget(stage, producer_id, session)
                known += 1
        return done(known)

    def publish(self) -> None:
        """Shows the changes of the applied batch to readers; called after the batch is written."""
        sessions = self._sessions
        for producer_id, session in self._staged.items():
            if session is None:
                sessions.pop(producer_id, None)
            else:
                sessions[producer_id] = session
                sessions.move_to_end(producer_id)
        if self._reading or self._read:  # a read that begins later finds the written rows in the store
            for producer_id in self._staged:
                self._reading.discard(producer_id)
                self._read.pop(producer_id, None)
        self._staged = {}
        while len(self._sessions) > self._sessions_max:
            self._sessions.popitem(last=False)

    def _current(self, producer_id: bytes) -> ProducerSession | None:
        if producer_id in self._staged:
            return self._staged[producer_id]
        return self.session(producer_id)  # this run has not changed the session, so the published one is current

    def _forget(self, stage: Stage, producer_id: bytes, session: ProducerSession) -> None:
        stage.delete(DEDUP, keys.producer_key(producer_id))
        if not session.is_lone:
            for part in session.all_parts():
                stage.unput(DEDUP, keys.session_key(producer_id, part.index), part.rows)
        self._staged[producer_id] = None

    def _settle(self, stage: Stage, producer_id: bytes, session: ProducerSession) -> None:
        ended = session._replace(low_sequence=session.max_sequence + 1, last_ms=0)
        stage.put(DEDUP, keys.producer_key(producer_id), ended.row())
        self._staged[producer_id] = ended


@shortcut
def add_sessions(
    data: bytes,
    at: int,
    index: int,
    time_ms: int,
    staged: dict[bytes, ProducerSession | None],
    sessions: dict[bytes, ProducerSession],
    rows: dict[bytes, bytes | None],
    known: dict[bytes, bytes | None],
    kinds: tuple[type[SessionPart], type[ProducerSession]],
    limits: tuple[int, int],
) -> int:
    """Adds packed sessions of an entry, from offset `at` of `data` on, to `staged` and `rows`. Returns the offset of
    the first session that it leaves to `Dedup._add_session`; the end of `data` if it leaves none. This Python function
    leaves every session. The native one leaves sessions that are malformed or have no rows, and those whose producer
    has no session in memory or one of many parts.

    `limits`: (the parts with which a session has too many, the most bytes of a part in the producer's own row).
    `staged` and `sessions` are those of `Dedup`; `rows` and `known` are `stage.rows` and `stage.before` of DEDUP.
    """
    return at


class DedupReads(Reads):
    """Read access to what a state holds about sends, to recognise duplicates."""

    _dedup = family_of(Dedup)
    _removals = family_of(Removals)

    def session(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the session of the producer with this id (16 bytes); None if it is unknown or expired."""
        return self._dedup.session(producer_id)

    def max_sequence(self, producer_id: bytes) -> int:
        """Returns the highest sequence number of the producer that is stored; 0 if the producer is unknown or
        expired."""
        return self._dedup.max_sequence(producer_id)

    def session_at_hand(self, producer_id: bytes) -> ProducerSession | None:
        """Returns the producer's session. Raises SessionUnreadError if the session is long and not in memory; the
        caller then calls `read_session` first."""
        return self._dedup.session_at_hand(producer_id)

    def read_session(self, producer_id: bytes) -> Iterator[None]:
        """Reads a long session into memory in short steps, so that `session_at_hand` finds it. Only one reader per
        producer at a time."""
        return self._dedup.read_session(producer_id)

    def unique(self, topic_id: int, key_hash: int, body_crc: int) -> UniqueMessage | None:
        """Returns the place of the stored message with this key and body, in a topic with dedup=strict; None if there
        is none."""
        if topic_id in self._removals.topics:
            return None
        return self._dedup.unique(topic_id, key_hash, body_crc)


def _take(stage: Stage, key: bytes, value: bytes) -> None:
    """Removes a row that the store has with the value `value`."""
    stage.delete(DEDUP, key)
    stage.before[DEDUP][key] = value


def _read_session(kv: KV, producer_id: bytes, parts_max: int | None = None) -> ProducerSession | None:
    """Reads a session from the store; reads it again if an applied entry changed it during the read. Raises
    SessionUnreadError if it has more than `parts_max` parts."""
    key = keys.producer_key(producer_id)
    row = kv.get(DEDUP, key)
    while row is not None:
        if (lone := _lone(row)) is not None:
            return lone
        stored = kv.scan(DEDUP, *keys.sessions_of(producer_id))
        if parts_max is not None:
            stored = islice(stored, parts_max + 1)
        parts = [_part(keys.parse_session_key(name)[1], rows) for name, rows in stored]
        if parts_max is not None and len(parts) > parts_max:
            raise SessionUnreadError
        again = kv.get(DEDUP, key)
        if again == row:
            low, high, last_ms = keys.PRODUCER.unpack(row)
            return _session(low, high, last_ms, parts)
        row = again
    return None


def _lone(row: bytes) -> ProducerSession | None:
    """Returns the session whose only part is in the producer's own row; None if its parts have rows of their own.
    Raises InvariantViolationError if the row is neither of the two."""
    size = keys.PRODUCER.size
    if len(row) == size:
        return None
    if len(row) < size + keys.U64.size:
        raise InvariantViolationError(f"the row of a producer has {len(row)} bytes")
    low, high, last_ms = keys.PRODUCER.unpack_from(row)
    (index,) = keys.U64.unpack_from(row, size)
    return ProducerSession(low, high, last_ms, (_part(index, row[size + keys.U64.size :]),), (), True)


def _session(low: int, high: int, last_ms: int, parts: list[SessionPart]) -> ProducerSession:
    at = max(0, len(parts) - PIECE_MAX)
    older = [_piece(tuple(parts[max(0, end - PIECE_MAX) : end])) for end in range(at, 0, -PIECE_MAX)]
    return ProducerSession(low, high, last_ms, tuple(parts[at:]), tuple(reversed(older)))


def _piece(parts: tuple[SessionPart, ...]) -> Piece:
    highs = [part.high for part in parts]
    return Piece(min([part.low for part in parts]), max(highs), min(highs), parts)


def _settle_older(stage: Stage, producer_id: bytes, older: tuple[Piece, ...], low: int) -> tuple[Piece, ...]:
    """Removes the parts of a session whose sequences all lie below `low`, and returns the other pieces. Two
    neighbouring pieces with few parts become one."""
    charge(len(older))
    if all(piece.settled_at >= low for piece in older):
        return older
    left: list[Piece] = []
    for piece in older:
        if piece.settled_at >= low:
            left.append(piece)
            continue
        for each in piece.parts:
            if each.high < low:
                stage.unput(DEDUP, keys.session_key(producer_id, each.index), each.rows)
        parts = tuple([each for each in piece.parts if each.high >= low])
        if parts:
            if left and len(left[-1].parts) + len(parts) <= PIECE_MAX:
                parts = left.pop().parts + parts
            left.append(_piece(parts))
    return tuple(left)


def _part(index: int, rows: bytes) -> SessionPart:
    """Returns the part that entry `index` added, with its packed rows. Raises InvariantViolationError if the bytes,
    which may be those of a stored row, are not whole rows."""
    if not rows or len(rows) % _ROW_SIZE:
        raise InvariantViolationError(f"{len(rows)} bytes are no session rows of entry {index}, of {_ROW_SIZE} each")
    return SessionPart(index, _sequence_at(rows, 0), _sequence_at(rows, len(rows) // _ROW_SIZE - 1), rows)


def _sequence_at(rows: bytes, row: int) -> int:
    sequence: int = SESSION_ROW.unpack_from(rows, row * _ROW_SIZE)[0]
    return sequence
