"""Queues the sends that wait for their entry, and decides which of them the next entry takes.

The oldest send comes first, as long as the next entry takes all waiting sends, or all of them are of one owner and one
topic. Otherwise `cluster.replication.fair_order` orders them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from cluster.replication.acks.ack_levels import ATTRIBUTE, NAMES
from cluster.replication.fair_order import FairOrder, competes, take_where
from cluster.replication.message_batch import QueueCursor, Send, TopicSlot, message_size
from cluster.replication.pending_requests import NAMED_PER_UNIT
from raftlog.work import charge
from raftmq_wire.kernel import twin

if TYPE_CHECKING:
    from cluster.config.service_sections import LimitsSection
    from cluster.flow.admission_limit import AdmissionLimit
    from statemachine.topics.topics import TopicConfig


@twin
def cut(waiting: deque[Send], bytes_left: int, count_left: int) -> tuple[list[Send], int]:
    """Removes sends from the front, up to `bytes_left` stored bytes and `count_left` messages, but at least one.
    Returns them and the bytes of their requests (`Send.size`)."""
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
    """The queue of sends that wait for their entry."""

    __slots__ = (
        "_admission",
        "_alone",
        "_fair",
        "_limits",
        "_mixed",
        "_names",
        "_replaced",
        "_returned",
        "bytes",
        "is_ordered",
        "waiting",
    )

    def __init__(self, limits: LimitsSection, admission: AdmissionLimit) -> None:
        """`admission` has the bytes that an entry may take at present, which may be less than the limit of the
        configuration."""
        self._limits = limits
        self._admission = admission
        self.waiting: deque[Send] = deque()
        """The sends that came last, oldest first. All sends, unless some are in `_fair` or `_returned`."""
        self._mixed = False
        """True if the sends in `waiting` are of several owners or topics. Updated once per read of a connection. A read
        has one owner; if it has several topics, this is noticed at the next read."""
        self._replaced = False
        """True if the sends may not be in the order of their arrival: a repetition may have replaced its first arrival,
        or a send may have been added late."""
        self.is_ordered = True
        """True if the sends that `cut` returned last are oldest first."""
        self._fair = FairOrder()
        """The sends that arrived before those in `waiting`, in fair order. Used if the sends of one owner and topic
        would delay others."""
        self._returned: deque[Send] = deque()
        """Sends that go first: those that were taken and put back, and those that must precede a change of their
        topic."""
        self._alone = 0
        """The number of sends in `_returned` that get an entry each, because one of them made a batch fail."""
        self.bytes = 0
        """The bytes of the requests of all sends; 0 if there is none."""
        self._names: dict[tuple[bytes, int], Send] | None = None
        """(id of the session, sequence) -> send, kept from the first search for a repetition until no send waits; else
        None. In an overload most sends are repetitions of refused ones: a search through the queue for each took most
        of the leader's time."""

    def __len__(self) -> int:
        return len(self._returned) + self._fair.count + len(self.waiting)

    def __iter__(self) -> Iterator[Send]:
        return chain(self._returned, self._fair, self.waiting)

    def reload(self, limits: LimitsSection) -> None:
        """Applies changed limits."""
        self._limits = limits

    def add(self, sends: list[Send], size: int) -> None:
        """Adds one send, or the sends of one read of a connection. `size`: the bytes of their requests together."""
        waiting = self.waiting
        if waiting and not self._mixed:
            self._mixed = competes(sends[0], waiting[-1])
        waiting.extend(sends)
        self.bytes += size
        if self._names is not None:
            self._came(sends)

    def add_late(self, send: Send) -> None:
        """Adds a send that may have arrived before others that already wait."""
        self._replaced = True
        self.add([send], send.size)

    def _came(self, sends: list[Send]) -> None:
        """Records the identities of sends that were added or put back."""
        names = self._names
        if names is not None:
            for send in sends:
                names[send.producer_id, send.sequence] = send

    def _gone(self, sends: list[Send]) -> None:
        """Subtracts sends that were removed, and forgets their identities."""
        self.bytes -= sum([send.size for send in sends])
        if self._names is not None:
            self._forget_names(sends)

    def _forget_names(self, sends: list[Send]) -> None:
        names = self._names
        if not self.bytes:
            self._names = None
        elif names is not None:
            for send in sends:
                names.pop((send.producer_id, send.sequence), None)

    def find(self, producer_id: bytes, sequence: int) -> Send | None:
        """Returns the send with this identity; None if none waits."""
        if not self.bytes:
            return None
        if self._names is None:
            charge(1 + len(self) // NAMED_PER_UNIT)
            self._names = {(send.producer_id, send.sequence): send for send in self}
        return self._names.get((producer_id, sequence))

    @property
    def has_light(self) -> bool:
        """True if an owner has lately sent less than its share while others sent more than an entry takes
        (`FairOrder.has_light`)."""
        return self._fair.has_light

    def first(self) -> Send:
        """Returns the send that the next entry takes first. Raises IndexError if there is none."""
        if self._returned:
            return self._returned[0]
        if self._fair.count:
            self._sort()
        return self._fair.first() or self.waiting[0]

    def cut(self) -> list[Send]:
        """Removes and returns the waiting sends for the next entry, up to the batch limits; a large send goes alone."""
        bytes_left = min(self._limits.batch_bytes_max, self._admission.entry_bytes)
        count_left = self._limits.batch_messages_max
        if self._alone:
            self._alone -= 1
            count_left = 1
        self.is_ordered = False
        if self._returned:
            sends, size = cut(self._returned, bytes_left, count_left)
        elif self._fair.count or (self._mixed and (self.bytes > bytes_left or len(self.waiting) > count_left)):
            self._sort()
            if self._fair.has_light:
                bytes_left = min(bytes_left, self._admission.shared_bytes)
            sends, size = self._fair.take(bytes_left, count_left)
        else:
            sends, size = cut(self.waiting, bytes_left, count_left)
            self.is_ordered = not self._replaced
            if not self.waiting:
                self._mixed = self._replaced = False
        self.bytes -= size
        if self._names is not None:
            self._forget_names(sends)
        return sends

    def _sort(self) -> None:
        """Sorts newly arrived sends into the fair order."""
        if self.waiting:
            self._fair.add(self.waiting)
            self.waiting.clear()
            self._mixed = False

    def put_back(self, sends: list[Send], *, alone: bool = False) -> None:
        """Puts back the sends that were taken last, because they were not proposed after all. `alone`: True to give
        each of them an entry of its own next time."""
        self._returned.extendleft(reversed(sends))
        self.bytes += sum([send.size for send in sends])
        self._came(sends)
        if alone:
            self._alone = len(sends)

    @property
    def is_hastened(self) -> bool:
        """True if there are sends that go first."""
        return bool(self._returned)

    def hasten(self, topics: Container[str]) -> bool:
        """Moves to the front all sends whose topic is one of `topics`. Returns False if there are none."""
        sends = self.take_where(lambda send: send.slot.name in topics)
        self._returned.extend(sends)
        self.bytes += sum([send.size for send in sends])
        self._came(sends)
        return bool(sends)

    def replace(self, old: Send, new: Send) -> None:
        """Replaces a waiting send by its repetition."""
        if not self._fair.replace(old, new):
            queue = self.waiting if old in self.waiting else self._returned
            queue[queue.index(old)] = new
        self._replaced = True
        self.bytes += new.size - old.size
        self._came([new])

    def take_older(self, before_ms: int) -> list[Send]:
        """Removes and returns the sends that came at or before `before_ms`."""
        if self._replaced:
            return self.take_where(lambda send: send.received_ms <= before_ms)
        late = [send for send in self._returned if send.received_ms <= before_ms]
        if late:
            self._returned = deque(send for send in self._returned if send.received_ms > before_ms)
        if self._fair.count:
            late += self._fair.take_older(before_ms)
        while self.waiting and self.waiting[0].received_ms <= before_ms:
            late.append(self.waiting.popleft())
        self._gone(late)
        return late

    def demote(self, topics: Collection[int]) -> None:
        """Gives a smaller share to topics with these ids, and refuses their sends first, from now on."""
        self._fair.demote(topics)

    def take_longest(self, size: int, count: int, limit: int) -> list[Send]:
        """Removes and returns sends of clients: as many as needed for `size` bytes, and at most `count`. Takes the
        oldest sends of the owners whose waiting sends cost most. Each owner keeps an equal share of `limit` bytes
        (`FairOrder.take_longest`)."""
        self._sort()
        taken = self._fair.take_longest(size, count, limit)
        self._gone(taken)
        return taken

    def take_where(self, which: Callable[[Send], bool]) -> list[Send]:
        """Removes and returns the sends for which `which` is true."""
        taken = self._fair.take_where(which) if self._fair.count else []
        for queue in (self._returned, self.waiting):
            taken += take_where(queue, which)
        self._alone = min(self._alone, len(self._returned))
        self._gone(taken)
        return taken

    def take_all(self) -> list[Send]:
        """Removes and returns all sends; those of one connection to one topic are in their order."""
        sends = list(self)
        self._returned.clear()
        self._fair.take_all()
        self.waiting.clear()
        self.bytes = self._alone = 0
        self._replaced = False
        self._names = None
        return sends


def slot_of(config: TopicConfig, default: int, cursor: Callable[[int, int], QueueCursor]) -> TopicSlot:
    """Returns the topic as the send path needs it. `default`: the acknowledgement level if the topic names none."""
    dedup = config.attributes.get("dedup", "retry")
    if dedup == "strict" and config.name[0] == "%":
        dedup = "retry"  # a message that is sent back again has the key and body of the copy before it
    queues = max(config.read_queues, config.write_queues)
    ack = NAMES.get(config.attributes.get(ATTRIBUTE, ""), default)
    return TopicSlot(config.name, config.id, config.write_queues, queues, config.perm, dedup, cursor, ack)
