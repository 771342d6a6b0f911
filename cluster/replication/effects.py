"""Commands without a waiting client: oneway offset commits and ended sessions. They are added to the next entry.

No later command overtakes them: see `take_before`, and `Proposals`, which adds them only to entries behind every
command that is still to be proposed.
"""

from __future__ import annotations

import logging

from statemachine.commands import COMMIT_OFFSETS, DELETE_GROUP, END_SESSIONS, RESET_OFFSETS, Command, pack

logger = logging.getLogger(__name__)

TAKEN_MAX = 2_000
"""How many of each kind one entry carries: some 20 ms of work to apply. The others are in the next one."""


class Effects:
    """The waiting effects; falsy if there are none. Lost with leadership: their senders were promised nothing."""

    def __init__(self, flush_ms: int) -> None:
        """`flush_ms`: without another entry they get one of their own after this long."""
        self._flush_ms = flush_ms
        self._offsets: dict[tuple[str, int, int], int] = {}
        self._ended_sessions: list[bytes] = []
        self._since_ms = 0
        self._taken: tuple[dict[tuple[str, int, int], int], list[bytes]] = ({}, [])

    def reload(self, flush_ms: int) -> None:
        """Another `flush_ms` from now on."""
        self._flush_ms = flush_ms

    def __bool__(self) -> bool:
        return bool(self._offsets or self._ended_sessions)

    def offset(self, group: str, topic_id: int, queue_id: int, offset: int, now_ms: int) -> None:
        """Adds offsets; only the last value per queue counts."""
        self._note(now_ms)
        self._offsets[group, topic_id, queue_id] = offset

    def take_group(self, group: str) -> list[list[object]]:
        """Removes and returns the rows of one group's offsets."""
        names = [name for name in self._offsets if name[0] == group]
        return [[*name, self._offsets.pop(name)] for name in names]

    def take_before(self, command: Command) -> list[list[object]]:
        """Removes and returns the rows that must be in the log before `command`, which came later.

        A commit or a reset replaces waiting offsets of the same queues. Waiting offsets of a group go before its
        deletion and are deleted with it. A deleted topic needs nothing: its id is never reused, and apply leaves such
        rows out.
        """
        if not self._offsets:
            return []
        if command[0] == DELETE_GROUP:
            return self.take_group(command[1])
        if command[0] == COMMIT_OFFSETS:
            for group, topic_id, queue_id, _ in command[1]:
                self._offsets.pop((group, topic_id, queue_id), None)
        if command[0] == RESET_OFFSETS:
            for topic_id, queue_id, _ in command[3]:
                self._offsets.pop((command[1], topic_id, queue_id), None)
        return []

    def has_offset(self, group: str, topic_id: int, queue_id: int) -> bool:
        """Whether a commit of this queue waits here."""
        return (group, topic_id, queue_id) in self._offsets

    def session_ended(self, producer_id: bytes, now_ms: int) -> None:
        """Adds the end of a producer session: the state may forget this producer."""
        self._note(now_ms)
        self._ended_sessions.append(producer_id)

    def due(self, now_ms: int) -> bool:
        """Whether they have waited long enough for another entry."""
        return bool(self._offsets or self._ended_sessions) and now_ms - self._since_ms >= self._flush_ms

    def take(self) -> bytes:
        """The oldest of them, packed; b"" if there are none. One that cannot be packed is dropped, not the others."""
        commands: list[Command] = []
        self._taken = (self._take_offsets(), self._ended_sessions[:TAKEN_MAX])
        self._ended_sessions = self._ended_sessions[TAKEN_MAX:]
        offsets, ended_sessions = self._taken
        if offsets:
            commands.append([COMMIT_OFFSETS, [[*name, offset] for name, offset in offsets.items()]])
        if ended_sessions:
            commands.append([END_SESSIONS, ended_sessions])
        try:
            return pack(commands) if commands else b""
        except (ValueError, OverflowError, TypeError):
            logger.exception("offsets and ended sessions were not committed: they cannot be encoded")
            self._taken = ({}, [])
            return b""

    def _take_offsets(self) -> dict[tuple[str, int, int], int]:
        taken, self._offsets = self._offsets, {}
        if len(taken) > TAKEN_MAX:
            rows = list(taken.items())
            taken, self._offsets = dict(rows[:TAKEN_MAX]), dict(rows[TAKEN_MAX:])
        return taken

    def put_back(self) -> None:
        """The effects taken last were not proposed after all; newer ones take precedence."""
        offsets, ended_sessions = self._taken
        self._offsets = {**offsets, **self._offsets}
        self._ended_sessions = ended_sessions + self._ended_sessions
        self._taken = ({}, [])

    def clear(self) -> None:
        """Drops them."""
        self._offsets.clear()
        self._ended_sessions.clear()

    def _note(self, now_ms: int) -> None:
        if not self:
            self._since_ms = now_ms
