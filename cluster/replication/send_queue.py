"""The queue of sends that wait for their entry, oldest first; it decides how many of them the next entry takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.replication.acks.ack_levels import ATTRIBUTE, NAMES
from cluster.replication.message_batch import QueueCursor, Send, TopicSlot, message_size
from raftmq_wire.kernel import twin

if TYPE_CHECKING:
    from cluster.config.config import LimitsSection
    from cluster.flow.admission_limit import AdmissionLimit
    from statemachine.topics.topics import TopicConfig


@twin
def cut(waiting: deque[Send], bytes_left: int, count_left: int) -> tuple[list[Send], int]:
    """Takes sends off the front, up to `bytes_left` stored bytes and `count_left` messages; the first in any case.
    Returns them and the bytes of their requests."""
    sends: list[Send] = []
    size = 0
    while waiting and count_left > 0:
        send = waiting[0]
        bytes_left -= message_size(send, send.slot) if not send.batch else send.size
        if bytes_left < 0 and sends:
            break
        sends.append(waiting.popleft())
        size += send.size
        count_left -= len(send.batch) or 1
    return sends, size


class SendQueue:
    """The queue of sends that wait for their entry. `Proposals.submit_send`, called for every message, adds to it in
    place."""

    __slots__ = ("_admission", "_alone", "_limits", "bytes", "waiting")

    def __init__(self, limits: LimitsSection, admission: AdmissionLimit) -> None:
        """`admission` has the bytes that an entry may take at present, beside the limit of the configuration."""
        self._limits = limits
        self._admission = admission
        self.waiting: deque[Send] = deque()
        """The waiting sends, oldest first; always the same object."""
        self._alone = 0
        """The number of sends at the front that get an entry each, because one of them made a batch fail."""
        self.bytes = 0
        """The bytes of the requests of all waiting sends."""

    def reload(self, limits: LimitsSection) -> None:
        """Takes over changed limits."""
        self._limits = limits

    def add(self, sends: list[Send], size: int) -> None:
        """Adds sends, of `size` bytes together."""
        self.waiting.extend(sends)
        self.bytes += size

    def cut(self) -> list[Send]:
        """Takes the waiting sends for the next entry, up to the batch limits; a large send goes alone."""
        queue = self.waiting
        bytes_left = min(self._limits.batch_bytes_max, self._admission.entry_bytes)
        count_left = self._limits.batch_messages_max
        if self._alone:
            self._alone -= 1
            count_left = 1
        sends, size = cut(queue, bytes_left, count_left)
        self.bytes -= size
        return sends

    def put_back(self, sends: list[Send], *, alone: bool = False) -> None:
        """Puts back the sends that were taken last, because they were not proposed after all. `alone`: next time each
        gets its own entry."""
        self.waiting.extendleft(reversed(sends))
        self.bytes += sum([send.size for send in sends])
        if alone:
            self._alone = len(sends)

    def replace(self, old: Send, new: Send) -> None:
        """Replaces a waiting send by its repetition."""
        self.waiting[self.waiting.index(old)] = new
        self.bytes += new.size - old.size

    def take_older(self, before_ms: int) -> list[Send]:
        """Removes and returns the sends that came at or before that time."""
        late: list[Send] = []
        while self.waiting and self.waiting[0].received_ms <= before_ms:
            late.append(self.waiting.popleft())
            self.bytes -= late[-1].size
        return late

    def take_oldest(self, size: int, count: int) -> list[Send]:
        """Removes and returns the sends of clients that wait longest, among the first `count`, until they have `size`
        bytes."""
        kept: list[Send] = []
        taken: list[Send] = []
        for _ in range(min(count, len(self.waiting))):
            if size <= 0:
                break
            send = self.waiting.popleft()
            if send.done is not None:  # a copy that the node makes itself
                kept.append(send)
                continue
            taken.append(send)
            size -= send.size
            self.bytes -= send.size
        self.waiting.extendleft(reversed(kept))
        return taken

    def take_all(self) -> list[Send]:
        """Removes and returns all sends."""
        sends = list(self.waiting)
        self.waiting.clear()
        self.bytes = self._alone = 0
        return sends


def slot_of(config: TopicConfig, default: int, cursor: Callable[[int, int], QueueCursor]) -> TopicSlot:
    """Returns the topic as the send path needs it. `default`: the acknowledgement level if the topic names none."""
    dedup = config.attributes.get("dedup", "retry")
    if dedup == "strict" and config.name[0] == "%":
        dedup = "retry"  # a message sent back again has the key and body of the copy before
    queues = max(config.read_queues, config.write_queues)
    ack = NAMES.get(config.attributes.get(ATTRIBUTE, ""), default)
    return TopicSlot(config.name, config.id, config.write_queues, queues, config.perm, dedup, cursor, ack)
