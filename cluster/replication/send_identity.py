"""Gives an identity to sends whose clients do not identify them, so that repeated sends are recognised
(docs/adr/0011-duplicate-sends.md). For clients that do, computes the ids of their sessions (`names_of`, docs/adr/0098).

The Python client identifies its sends (a name for its session, and a sequence). For every other client, the node that
holds its connection does so: each connection is a session of its own, with a random id that no client sees. A send
without a final answer (its connection closed first, or the answer was UNKNOWN) is remembered here by user, topic and
UNIQ_KEY with its identity. The first later send with the same user, topic, key and body takes over that identity, and
the log recognises it, even on another leader. An answered send is never remembered, so one Message object sent ten
times is ten messages. If this node dies, it forgets which sends were unanswered, and a duplicate is then kept.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from raftmq_wire.kernel import twin
from statemachine.levels import OWNERS_LEVEL

REMEMBER_MS = 300_000
REMEMBER_MAX = 100_000
KEY_MAX = 128
"""The most characters of a UNIQ_KEY that is remembered as it is; a longer one is remembered as a digest."""

ID_SIZE = 16
"""Bytes of a session's id."""
SLICES = b"raftmq-w"
"""The first 8 bytes of the session id that the sender of a staged write uses; the other 8 bytes are the number of the
attempt."""
_OWNER_SIZE = 8
_NAMES_MAX = 4096
"""The most names of sessions whose ids are cached; each takes about 500 bytes."""


class SessionKind(IntEnum):
    """The use of a session that a client names. One kind cannot reach the sessions of another."""

    SEND = 0x73  # "s"
    SLICE = 0x77  # "w"
    OFFSETS = 0x6F  # "o"


def session_id(kind: SessionKind, owner: int, brought: bytes) -> bytes:
    """Returns the id of the session that a client names with `brought`. `owner`: id of the user who is proven; 0 if
    none is."""
    named = kind.to_bytes(1, "big") + owner.to_bytes(_OWNER_SIZE, "big") + brought
    return blake2b(named, digest_size=ID_SIZE, person=b"raftmq session").digest()


class SessionIds(NamedTuple):
    """The ids of the session that a client names, or that a node gave its connection."""

    own: bytes
    """The id of the session in which the client's sends are recorded."""
    unowned: bytes = b""
    """The id of the session of the same name without a user, which belongs to the first user who uses it; b"" if that
    is `own`. Sends are looked up in this session, but not recorded there."""
    before: bytes = b""
    """The id of the session in which the client's sends were recorded below OWNERS_LEVEL; b"" if that is `own`, or
    there can be none. Sends are looked up in this session, but not recorded there."""


def names_of(kind: SessionKind, owner: int, brought: bytes, level: int) -> SessionIds:
    """Returns the ids of the session that a client names with the 16 bytes `brought`. `owner`: id of the proven user, 0
    if none is. `level`: the level of the cluster."""
    if level < OWNERS_LEVEL:
        return SessionIds(brought)
    own, unowned = session_id(kind, owner, brought), session_id(kind, 0, brought)
    reaches = kind is SessionKind.SLICE or not brought.startswith(SLICES)
    return SessionIds(own, unowned if owner else b"", brought if reaches else b"")


def names_in(kind: SessionKind, owner: int, text: str, level: int) -> SessionIds:
    """Returns the ids of the session that a client names in the field raftmqPid; NO_NAMES if `text`, its value, is
    malformed."""
    # The length is checked before the cached call, because the cache must not keep a long text.
    return _names_in(kind, owner, text, level) if len(text) == 2 * ID_SIZE else NO_NAMES


NO_NAMES = SessionIds(b"")


@lru_cache(_NAMES_MAX)
def _names_in(kind: SessionKind, owner: int, text: str, level: int) -> SessionIds:
    try:
        brought = bytes.fromhex(text)
    except ValueError:
        return NO_NAMES
    # The length is checked again, because `fromhex` skips blanks.
    return names_of(kind, owner, brought, level) if len(brought) == ID_SIZE else NO_NAMES


def content_hash(owner: int, unique_key: str, body: bytes) -> int:
    """Returns a 64-bit hash by which a message of a topic with dedup=strict is recognised, from OWNERS_LEVEL on."""
    key = unique_key.encode("utf-8", "surrogatepass")
    hashed = blake2b(b"%b%b" % (owner.to_bytes(_OWNER_SIZE, "big"), len(key).to_bytes(4, "big")), digest_size=8)
    hashed.update(key)
    hashed.update(body)
    return int.from_bytes(hashed.digest(), "big")


def slice_hash(body: bytes) -> int:
    """Returns a hash of the messages of a slice, of 63 bits and never 0."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "big") >> 1 or 1


class Identity(NamedTuple):
    """The id of a session and the sequence in it, by which the log recognises a send that is repeated."""

    producer_id: bytes
    sequence: int
    low_sequence: int


class Unanswered(NamedTuple):
    """A send whose client does not know the outcome, as RetryMemory remembers it."""

    identity: Identity
    body_digest: bytes
    until_ms: int


class RetryMemory:
    """Remembers unanswered sends of RocketMQ clients, bounded in number and age. Sends of one user, topic and key are
    forgotten together, when the newest of them is older than those of every other key. A send is recognised only if
    the same user repeats it; `user` is the id of the user who signed it, 0 if none did."""

    def __init__(self, most: int = REMEMBER_MAX) -> None:
        self._most = most
        self._by_key: OrderedDict[tuple[int, str, str], list[Unanswered]] = OrderedDict()
        self.count = 0
        """The number of sends that it remembers; the kernel looks at it for each read of a connection."""

    def remember(self, user: int, topic: str, unique_key: str, body: bytes, identity: Identity, now_ms: int) -> None:
        """Remembers an unanswered send, so that its retry is recognised."""
        while self.count >= self._most:
            _, dropped = self._by_key.popitem(last=False)
            self.count -= len(dropped)
        record = Unanswered(identity, _digest(body), now_ms + REMEMBER_MS)
        key = (user, topic, _short(unique_key))
        self._by_key.setdefault(key, []).append(record)
        self._by_key.move_to_end(key)
        self.count += 1

    def claim(self, user: int, topic: str, unique_key: str, body: bytes, now_ms: int) -> Identity | None:
        """Returns the identity of the oldest unanswered send that this send repeats, and forgets it; None if there is
        none."""
        key = (user, topic, _short(unique_key))
        records = self._by_key.get(key)
        if not records:
            return None
        digest = _digest(body)
        for at, record in enumerate(records):
            if record.body_digest == digest and record.until_ms > now_ms:
                del records[at]
                self.count -= 1
                if not records:
                    del self._by_key[key]
                return record.identity
        return None

    def holds(self, user: int, topic: str, unique_key: bytes) -> bool:
        """Returns True if an unanswered send of the user with this topic and key is remembered."""
        return (user, topic, _short(unique_key.decode("utf-8", "replace"))) in self._by_key

    def expire(self, now_ms: int) -> None:
        """Forgets sends that are too old to be retried."""
        while self._by_key:
            key, records = next(iter(self._by_key.items()))
            if records[-1].until_ms > now_ms:
                return
            del self._by_key[key]
            self.count -= len(records)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


def _short(unique_key: str) -> str:
    """Returns a key as it is remembered: unchanged (clients' own have 32 characters), or its digest if it is too
    long."""
    if len(unique_key) <= KEY_MAX:
        return unique_key
    return blake2b(unique_key.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


@twin
class ConnectionSession:
    """A client's connection as a producer session. Its producer id is replaced after an UNKNOWN answer, so that old
    rows can be dropped."""

    __slots__ = ("_settled", "low", "next_sequence", "producer_id")

    def __init__(self, producer_id: bytes) -> None:
        self.producer_id = producer_id
        self.next_sequence = 1
        self.low = 1
        """The lowest sequence that is not answered yet; the next sequence if all are."""
        self._settled: set[int] = set()
        """The sequences above `low` that are answered."""

    @property
    def pending(self) -> int:
        """The number of sends of this connection that have no final answer yet."""
        return self.next_sequence - self.low - len(self._settled)

    def issue(self) -> tuple[bytes, int, int]:
        """Returns the fields of the Identity of the next send through this connection."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        return self.producer_id, sequence, self.low

    def settle(self, sequence: int) -> None:
        """Records that the send with this sequence has its final answer."""
        settled = self._settled
        if sequence == self.low < self.next_sequence:
            self.low = sequence + 1
            while settled and self.low in settled:
                settled.remove(self.low)
                self.low += 1
        elif self.low < sequence < self.next_sequence:
            settled.add(sequence)
