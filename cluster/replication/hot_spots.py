"""Finds the queues and keys that get most of the messages of this group, while this node leads it.

On average, one of STRIDE messages is sampled. The distances vary at random, so that a sender's rhythm does not distort
the counts. Entries without a sampled message cost only a subtraction for each of their queues. Copies that the broker
makes are counted too, since they are load of their queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.replication.message_head import KEYS_MARK, property_of
from cluster.runtime.figures.heavy_hitters import Heavy, HeavyHitters
from cluster.runtime.figures.thread_time import wanted_s
from statemachine.rows.keys import Queue

if TYPE_CHECKING:
    from cluster.replication.message_batch import QueueCursor, Send

STRIDE: Final = 64
"""The mean distance between two sampled messages."""
WINDOW_MS: Final = 5_000
QUEUES: Final = 64
KEYS: Final = 128
"""The most queues and keys that are counted in a window."""
KEY_BYTES_MAX: Final = 128
"""The most bytes of a key that count; the rest of a longer key is cut off."""
SHARDING_MARK: Final = b"__SHARDINGKEY\x01"
"""The mark of the property with the key by which a client chose the queue (MessageConst.PROPERTY_SHARDING_KEY). A
message without this property has the first word of its property KEYS as its key."""
_A, _C, _M = 1_103_515_245, 12_345, 1 << 31
"""The constants of a linear congruential generator (that of ANSI C). With it, each run of a simulator's seed samples
the same messages."""

TopicKey = tuple[int, str]
"""(topic id, key)."""


class Window(NamedTuple):
    """The messages of one window of time. Counts are estimates from the sampled messages."""

    took_ms: int
    busy: float
    """The part of the window, from 0 to 1, in which this thread (the node's event loop) used a core or waited for
    one."""
    messages: int
    """The number of messages, also an estimate."""
    queues: list[Heavy[Queue]]
    keys: list[Heavy[TopicKey]]
    """The heaviest keys; messages without a key do not count."""

    def topics(self) -> Counter[int]:
        """Returns topic id -> the least number of messages that came to those queues of the topic that are among the
        heaviest."""
        found = Counter[int]()
        for each in self.queues:
            found[each.item[0]] += each.sure
        return found


_NOTHING: Final = Window(0, 0.0, 0, [], [])


class HotSpots:
    """The heaviest queues and keys of the last window. Event loop only."""

    def __init__(self, now_ms: int, wanted_s: Callable[[], float] = wanted_s) -> None:
        """`wanted_s`: returns the seconds for which this thread has wanted a core."""
        self._wanted_s = wanted_s
        self._began_wanted_s = wanted_s()
        self._random = 1
        self._queues, self._keys = HeavyHitters[Queue](QUEUES), HeavyHitters[TopicKey](KEYS)
        self._began_ms = now_ms
        self.ends_ms = now_ms + WINDOW_MS
        """The time (monotonic milliseconds) at which `end_window` is due."""
        self.last = _NOTHING
        """The last window that has ended; an empty window before that."""

    def look(self, cursor: QueueCursor, left: int, sends: Sequence[Send]) -> int:
        """Samples one or more messages of an acknowledged entry that belong to the queue of `cursor`. `left` is
        negative: counted from the first message to sample, `-left` messages of the queue remain in the entry. `sends`:
        the sends of the entry. Returns the number of messages until the next sample."""
        weight = 0
        while left < 0:
            weight += STRIDE
            left += 1 + self._next(2 * STRIDE - 1)
        self._queues.add((cursor.topic_id, cursor.queue_id), weight)
        if sends:
            send = sends[self._next(len(sends))]
            if (topic_id := send.slot.topic_id) and (key := key_of(send)):
                self._keys.add((topic_id, key), weight)
        return left

    def _next(self, below: int) -> int:
        self._random = (self._random * _A + _C) % _M
        return (self._random >> 8) % below

    def end_window(self, now_ms: int) -> None:
        """Ends the window and begins the next. `last` is then the ended window; an empty one if nothing was sampled in
        it."""
        queues, keys, wanted_s, took_ms = self._queues, self._keys, self._wanted_s(), now_ms - self._began_ms
        busy = 1000 * (wanted_s - self._began_wanted_s) / took_ms
        self._began_ms, self._began_wanted_s, self.ends_ms = now_ms, wanted_s, now_ms + WINDOW_MS
        if not queues.total:
            self.last = _NOTHING
            return
        self.last = Window(took_ms, busy, queues.total, queues.heaviest(QUEUES), keys.heaviest(KEYS))
        self._queues, self._keys = HeavyHitters[Queue](QUEUES), HeavyHitters[TopicKey](KEYS)


def key_of(send: Send) -> str:
    """Returns the key of a send; for a batch, the key of its first message. "" if there is none."""
    properties = send.batch[0].properties if send.batch else send.properties
    key = property_of(properties, SHARDING_MARK) or property_of(properties, KEYS_MARK).partition(b" ")[0]
    return key[:KEY_BYTES_MAX].decode(errors="replace")
