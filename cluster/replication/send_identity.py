"""Gives sends of clients that do not identify them an identity, by which repeated sends are recognised
(docs/adr/0011-duplicate-sends.md).

The Python client identifies its sends (producer id, sequence). For every other client, the node that holds its
connection does so: each connection is a producer session of its own. A send without a final answer (its connection
closed first, or the answer was UNKNOWN) is remembered here by UNIQ_KEY with its identity. The first later send with the
same topic, key and body takes over that identity, and the log recognises it, even on another leader. An answered send
is never remembered, so one Message object sent ten times is ten messages. If this node dies, it forgets which sends
were unanswered, and a duplicate is then kept.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

from raftmq_wire.crc import crc32
from raftmq_wire.kernel import twin

REMEMBER_MS = 300_000
REMEMBER_MAX = 100_000
KEY_MAX = 128
"""The most characters of a UNIQ_KEY that is remembered as it is; a longer one is remembered as a digest."""


class Identity(NamedTuple):
    """The producer id and sequence by which the log recognises a send that is repeated."""

    producer_id: bytes
    sequence: int
    low_sequence: int


class Unanswered(NamedTuple):
    """A send whose client does not know the outcome, as RetryMemory remembers it."""

    identity: Identity
    body_crc: int
    until_ms: int


class RetryMemory:
    """Remembers unanswered sends of RocketMQ clients, oldest first; bounded in number and age."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[tuple[str, str], list[Unanswered]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def remember(self, topic: str, unique_key: str, body: bytes, identity: Identity, now_ms: int) -> None:
        """Remembers an unanswered send, so that its retry is recognised."""
        unique_key = _short(unique_key)
        while self._count >= REMEMBER_MAX:
            _, dropped = self._by_key.popitem(last=False)
            self._count -= len(dropped)
        record = Unanswered(identity, crc32(body), now_ms + REMEMBER_MS)
        self._by_key.setdefault((topic, unique_key), []).append(record)
        self._count += 1

    def claim(self, topic: str, unique_key: str, body: bytes, now_ms: int) -> Identity | None:
        """Returns the identity of the oldest unanswered send that this send repeats, and forgets it; None if there is
        none."""
        unique_key = _short(unique_key)
        records = self._by_key.get((topic, unique_key))
        if not records:
            return None
        body_crc = crc32(body)
        for at, record in enumerate(records):
            if record.body_crc == body_crc and record.until_ms > now_ms:
                del records[at]
                self._count -= 1
                if not records:
                    del self._by_key[topic, unique_key]
                return record.identity
        return None

    def holds(self, topic: str, unique_key: bytes) -> bool:
        """Returns True if an unanswered send with this topic and key is remembered."""
        return (topic, _short(unique_key.decode("utf-8", "replace"))) in self._by_key

    def expire(self, now_ms: int) -> None:
        """Forgets sends that are too old to be retried."""
        while self._by_key:
            key, records = next(iter(self._by_key.items()))
            if records[-1].until_ms > now_ms:
                return
            del self._by_key[key]
            self._count -= len(records)


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
        """The number of this connection's sends that are not answered yet."""
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
