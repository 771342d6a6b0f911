"""Numbered messages with a key each, in several topics: a story sends them, and searches them at its end."""

from __future__ import annotations

import concurrent.futures
import struct
import time
from collections.abc import Sequence
from types import TracebackType

from raftmq.client import connect
from raftmq.client.errors import RaftMQError
from raftmq.local.local_users import ClientOptions

QUEUES = 4
RUN = 64
"""Consecutive numbers that go to one queue, as batches do. The tier reads neighbours together; it would read every
message by itself if messages of a dozen other queues lay in between."""
_NUMBER = struct.Struct(">Q")
_OUTCOMES_S = 120.0
"""Longest time in seconds to wait for the last outcomes of a chunk, since a leader may be killed meanwhile and the
producer tries again.
"""
_AGAIN_S = 0.2


class KeyedMessages:
    """Sends numbered messages (`send` from one thread), each to one of the topics in turn, and remembers the numbers
    that were acknowledged."""

    def __init__(
        self, servers: str, options: ClientOptions, topics: Sequence[str], body_bytes: int, count_max: int
    ) -> None:
        self._topics = tuple(topics)
        self._client = connect(servers, timeout_s=_OUTCOMES_S, **options)
        self._producer = self._client.producer()
        self._filler = b"." * max(0, body_bytes - _NUMBER.size)
        self._acked = bytearray(count_max)
        self.sent = 0
        for topic in topics:
            self._client.admin.create_topic(topic, queues=QUEUES)

    def __enter__(self) -> KeyedMessages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._producer.close()
        self._client.close()

    @property
    def acked(self) -> int:
        """The number of messages that were acknowledged."""
        return self._acked.count(1)

    def topic_of(self, number: int) -> str:
        """Returns the topic that the message goes to."""
        return self._topics[number // RUN % len(self._topics)]

    def _queue_of(self, number: int) -> int:
        return number // (RUN * len(self._topics)) % QUEUES

    def send(self, count: int) -> int | None:
        """Sends `count` more messages, but `count_max` in all at most, and waits for their outcomes; returns the last
        number that was acknowledged, None if none was.
        """
        first = self.sent
        count = min(count, len(self._acked) - first)
        under_way = {}
        for number in range(first, first + count):
            body = _NUMBER.pack(number) + self._filler
            topic, queue = self.topic_of(number), self._queue_of(number)
            under_way[self._producer.send_soon(topic, body, key=key_of(number), queue_id=queue)] = number
        self.sent += count
        concurrent.futures.wait(under_way, _OUTCOMES_S)
        for future, number in under_way.items():
            if future.done() and future.exception() is None:
                self._acked[number] = 1
        last = self._acked.rfind(1, first, first + count)
        return None if last < 0 else last

    def find(self, number: int, patience_s: float) -> str:
        """Queries the message by its key; returns what is wrong with the answer, "" if nothing is. While no node can
        answer, it asks again; an answer without the message is final."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                found = self._client.admin.query_messages(self.topic_of(number), key_of(number))
            except RaftMQError as error:
                if time.monotonic() > deadline:
                    return f"a query for the key {key_of(number)} had no answer in {patience_s:.0f} s: {error}"
                time.sleep(_AGAIN_S)
                continue
            if number in [_NUMBER.unpack_from(message.body)[0] for message in found]:
                return ""
            return f"message {number} was acknowledged, and a query for its key {key_of(number)} does not find it"

    def read_all(self) -> list[str]:
        """Reads each queue from offset zero to its end; returns what is wrong."""
        seen, wrong = bytearray(len(self._acked)), []
        for topic in self._topics:
            for queue in range(QUEUES):
                wrong += self._read(topic, queue, seen)
        lost = [number for number, acked in enumerate(self._acked) if acked and not seen[number]]
        if lost:
            wrong.append(f"{len(lost)} acknowledged messages are not there, the first is number {lost[0]}")
        return wrong

    def _read(self, topic: str, queue: int, seen: bytearray) -> list[str]:
        at = 0
        while True:
            pulled = self._client.pull(topic, queue, at)
            offsets = [message.queue_offset for message in pulled.messages]
            if offsets != list(range(at, at + len(offsets))) or pulled.min_offset:
                told = f"{offsets[0]} to {offsets[-1]}" if offsets else f"nothing, from {pulled.min_offset} on"
                return [f"queue {queue} of {topic} has a gap: {told} instead of {at}"]
            for message in pulled.messages:
                seen[_NUMBER.unpack_from(message.body)[0]] = 1
            at += len(offsets)
            if not offsets:
                return [] if at == pulled.max_offset else [f"queue {queue} of {topic} ends at {at}, not at its end"]


def key_of(number: int) -> str:
    """Returns the key of the message with that number."""
    return f"k{number}"
