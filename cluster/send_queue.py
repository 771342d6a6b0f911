"""Sends that wait for their entry, oldest first, and how many of them the next entry takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cluster.message_batch import Send, message_size

if TYPE_CHECKING:
    from cluster.config import LimitsSection


class SendQueue:
    """Falsy if nobody waits."""

    __slots__ = ("_alone", "_limits", "_sends", "bytes")

    def __init__(self, limits: LimitsSection) -> None:
        self._limits = limits
        self._sends: deque[Send] = deque()
        self._alone = 0
        """How many of the first get an entry each: one of them could not be made part of a batch."""
        self.bytes = 0
        """Of the requests that wait."""

    def __bool__(self) -> bool:
        return bool(self._sends)

    def __iter__(self) -> Iterator[Send]:
        return iter(self._sends)

    @property
    def first(self) -> Send:
        """The oldest; there is one."""
        return self._sends[0]

    def append(self, send: Send) -> None:
        """It goes last."""
        self._sends.append(send)
        self.bytes += send.size

    def cut(self) -> list[Send]:
        """Takes all that has gathered, up to the batch limits; a large send goes alone."""
        queue = self._sends
        bytes_left = self._limits.batch_bytes_max
        count_left = self._limits.batch_messages_max
        if self._alone:
            self._alone -= 1
            count_left = 1
        sends: list[Send] = []
        while queue and count_left > 0:
            send = queue[0]
            bytes_left -= message_size(send) if not send.batch else send.size
            if bytes_left < 0 and sends:
                break
            sends.append(queue.popleft())
            self.bytes -= send.size
            count_left -= len(send.batch) or 1
        return sends

    def put_back(self, sends: list[Send], *, alone: bool = False) -> None:
        """What was cut was not proposed after all; `alone`: next time each goes by itself."""
        self._sends.extendleft(reversed(sends))
        self.bytes += sum([send.size for send in sends])
        if alone:
            self._alone = len(sends)

    def replace(self, old: Send, new: Send) -> None:
        """A re-sent request takes the place of its first arrival."""
        self._sends[self._sends.index(old)] = new
        self.bytes += new.size - old.size

    def take_older(self, before_ms: int) -> list[Send]:
        """Takes those that came at or before that time."""
        late: list[Send] = []
        while self._sends and self._sends[0].received_ms <= before_ms:
            late.append(self._sends.popleft())
            self.bytes -= late[-1].size
        return late

    def take_all(self) -> list[Send]:
        """Takes everything."""
        sends = list(self._sends)
        self._sends.clear()
        self.bytes = self._alone = 0
        return sends
