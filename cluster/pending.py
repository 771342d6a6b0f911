"""Who waits for a proposed entry, and how each is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from cluster.message_batch import Built, Send
from cluster.services import ProposeResult
from raftlog.types import EntryId
from statemachine.commands import CREATE_TOPIC, DELETE_TOPIC, Command

logger = logging.getLogger(__name__)

Done = Callable[[ProposeResult], None]


class SendReplies(Protocol):
    """Who turns the fate of a send into bytes for the client (see `remoting.send_reply`)."""

    def stored(self, sends: list[Send], built: Built, muted: set[int]) -> None:
        """All of them are committed and applied; those at the `muted` positions have had their answer (UNKNOWN)."""

    def stored_before(self, send: Send, topic_id: int, queue_id: int, queue_offset: int, position: int) -> None:
        """A re-send of what the log holds."""

    def refused(self, send: Send, remark: str) -> None:
        """Never proposed, or proved lost."""

    def unknown(self, send: Send, remark: str) -> None:
        """Proposed, undecided at the deadline."""


class PendingCommands:
    """One caller's commands; several callers may share a COMMAND entry."""

    __slots__ = ("_done", "commands", "deadline_ms")

    def __init__(self, commands: list[Command], done: Done, deadline_ms: int) -> None:
        self.commands = commands
        self.deadline_ms = deadline_ms
        self._done = done

    def tell(self, result: ProposeResult) -> None:
        """A waiter that fails must not take the node with it: what it asked for is in the log or not, all the same."""
        try:
            self._done(result)
        except Exception:
            logger.exception("a waiter for %s failed", [command[0] for command in self.commands])


class PendingEntry:
    """A proposed entry and all who wait for it."""

    __slots__ = ("answered", "built", "bytes", "calls", "deadline_ms", "id", "muted", "proposed_s", "sends")

    def __init__(self, entry_id: EntryId, deadline_ms: int) -> None:
        self.id = entry_id
        self.deadline_ms = deadline_ms
        self.sends: list[Send] = []
        self.built: Built | None = None
        self.calls: list[PendingCommands] = []
        self.bytes = 0
        self.proposed_s = 0.0
        self.answered = False
        """True once its waiters were told UNKNOWN; the entry itself waits on for the log's decision."""
        self.muted: set[int] = set()
        """Positions in `sends` that were told UNKNOWN and must not be answered a second time."""


class TopicBarriers:
    """Topics with a change that is proposed and not applied: their sends wait behind it."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._count)

    def __contains__(self, topic: str) -> bool:
        return topic in self._count

    def raise_for(self, commands: list[Command]) -> list[str]:
        """Raises the barrier of every topic that the commands change; returns them."""
        names = [_topic_of(command) for command in commands if command[0] in (CREATE_TOPIC, DELETE_TOPIC)]
        for name in names:
            self._count[name] = self._count.get(name, 0) + 1
        return names

    def lower_for(self, waiter: PendingEntry) -> None:
        """The entry was applied, or is lost."""
        for call in waiter.calls:
            for command in call.commands:
                if command[0] in (CREATE_TOPIC, DELETE_TOPIC):
                    name = _topic_of(command)
                    left = self._count.pop(name, 0) - 1
                    if left > 0:
                        self._count[name] = left

    def clear(self) -> None:
        """A new term of leadership: nothing is in flight."""
        self._count.clear()


def _topic_of(command: Command) -> str:
    name: str = command[1]["name"] if command[0] == CREATE_TOPIC else command[1]
    return name
