"""Sends the driver's messages if `replication.thrifty` is on: some appends are held back. `raftlog.core.held_appends`
decides which. This module gives it the time, calls it when a held append is due, and tells it of acknowledgements.

It sits between the driver and the transport, and the driver does not know of it: to the driver, a message that waits
here looks like a message on a slow network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from cluster.runtime.clock import Clock
from cluster.runtime.failpoints.failpoints import SendsMessages
from raftlog.core.held_appends import HeldAppends
from raftlog.core.raw_node import RawNode
from raftlog.messages import AppendEntriesReply, Message

ROUNDING_MS: Final = 0.6
"""Milliseconds that are added to a timer: the loop rounds to whole milliseconds, and a timer that fires early must be
set again."""


class ThriftySender:
    """A MessageSender that holds appends back. Event loop only."""

    def __init__(
        self,
        inner: SendsMessages,
        appends: HeldAppends,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        receive: Callable[[Message], None],
        flush: Callable[[RawNode], object],
    ) -> None:
        """`inner` sends messages. `receive` gets each message from a peer. `flush` is the argument `flush` of
        `RaftDriver`."""
        self._inner = inner
        self.appends = appends
        self._loop = loop
        self._clock_s = clock.monotonic_s
        self._receive = receive
        self._flush = flush
        self.timer: asyncio.TimerHandle | None = None
        """Set while anything is held; one timer serves many appends."""

    def send(self, messages: Iterable[Message]) -> None:
        """Sends those messages that need not wait, and the held messages that are due."""
        appends, now_ms = self.appends, 1000 * self._clock_s()
        leaving = appends.leave(messages if isinstance(messages, list) else list(messages), now_ms)
        if leaving:
            self._inner.send(leaving)
        if appends.held and self.timer is None:
            self._wait(now_ms)

    def receive(self, message: Message) -> None:
        """Passes on a message from a peer, and notes if it acknowledges entries."""
        if type(message) is AppendEntriesReply:
            self.appends.on_reply(message, 1000 * self._clock_s())
        self._receive(message)

    def flush(self, raw: RawNode) -> None:
        """Sends the held messages if there is a reason to send everything at once (`HeldAppends.why_whole`). Then calls
        `flush`, which proposes queued requests."""
        if self.appends.held and self.appends.why_whole():
            self._inner.send(self.appends.give_out())
        self._flush(raw)

    def _wait(self, now_ms: float) -> None:
        delay_ms = self.appends.wake_ms(now_ms) - now_ms + ROUNDING_MS
        self.timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self.timer = None
        now_ms = 1000 * self._clock_s()
        due = self.appends.look(now_ms)
        if due:
            self._inner.send(due)
        if self.appends.held:
            self._wait(now_ms)
