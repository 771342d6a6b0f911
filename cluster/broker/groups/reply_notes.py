"""Notes which clients wait for a reply. A send with REPLY_TO_CLIENT names a client id and a correlation id, and the
node that takes the send notes its user and its connection.

A reply names only these two ids, which any client could write. The note says to whom they belong. The reply goes to the
connection of the note, or, when that has closed, to another one of the same user and client id
(`cluster.broker.groups.reply_delivery`). Notes are in memory. They last as long as the requester waits (property TTL),
and are bounded in number and bytes: a user with many of them loses its own oldest ones.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.broker.groups.group_members import CLIENT_ID_MAX
from cluster.broker.groups.relay_frame import CORRELATION_MAX
from cluster.runtime.service_lifecycle import Part
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.broker.services import Client, Services

TTL_MIN_MS: Final = 60_000
"""The fewest milliseconds that a note lasts. The property TTL comes from the client: Java's client writes milliseconds,
Go's whole seconds (rocketmq-client-go 2.1.2). So a small number may stand for a long time."""
TTL_MAX_MS: Final = 300_000
NOTES_MAX: Final = 50_000
BYTES_MAX: Final = 16 << 20
NOTE_BYTES: Final = 500
"""The bytes of a note in memory, without its ids."""
ENDED_PER_TICK: Final = 2_000
"""The most expired notes that are removed in one tick, or when a note is added."""

RequesterKey = tuple[str, str]
"""(client id, correlation id)."""


class WaitingRequester(NamedTuple):
    """The note of a requester that waits for a reply."""

    user: int
    connection: Client
    ends_ms: int
    """The time of the loop's clock, in milliseconds, until which the requester waits."""
    size: int


def ttl_of(text: str) -> int:
    """Returns the milliseconds that a note lasts: the value of the property TTL, kept within TTL_MIN_MS and TTL_MAX_MS.
    `text`: the property's value."""
    if not text.isdecimal():
        return TTL_MIN_MS
    asked_ms = int(text) if len(text) <= len(str(TTL_MAX_MS)) else TTL_MAX_MS
    return min(max(asked_ms, TTL_MIN_MS), TTL_MAX_MS)


class ReplyNotes:
    """The notes of one node. Event loop only."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._began_ms = services.monotonic_ms()
        self._notes: dict[RequesterKey, WaitingRequester] = {}
        self._of_user: dict[int, OrderedDict[RequesterKey, None]] = {}
        """User -> the keys of its notes, oldest first."""
        self._of_client: Counter[tuple[str, int]] = Counter()
        """(client id, user) -> the number of its notes."""
        self._ending: dict[int, dict[RequesterKey, None]] = {}
        """Second of the loop's clock -> the keys of the notes that end in it. Seconds without notes are removed."""
        self._bytes = 0
        self._swept_ms = self._began_ms
        self._lost_ms: dict[int, int] = {}
        """User -> time of the loop's clock at which one of its notes was last removed before its end, to make room."""

    def __len__(self) -> int:
        return len(self._notes)

    def part(self) -> Part:
        """Returns the hook through which the node calls this service."""
        return Part(name="reply notes", tick=lambda _: self._forget_ended())

    def note(self, client_id: str, correlation_id: str, ttl_ms: int, user: int, connection: Client) -> None:
        """Records that the user's client on this connection waits for a reply. Another user's note with the same ids
        stays until it ends, because this user may have read the ids in the other user's request."""
        if len(client_id) > CLIENT_ID_MAX or len(correlation_id) > CORRELATION_MAX:
            return
        self._forget_ended()
        now_ms, key = self._services.monotonic_ms(), (client_id, correlation_id)
        known = self._notes.get(key)
        if known is not None:
            if known.user != user and known.ends_ms > now_ms:
                return
            self._forget(key)
        size = NOTE_BYTES + 4 * (len(client_id) + len(correlation_id))
        while self._notes and (len(self._notes) >= NOTES_MAX or self._bytes + size > BYTES_MAX):
            self._make_room(user)
        self._notes[key] = WaitingRequester(user, connection, now_ms + ttl_ms, size)
        self._ending.setdefault((now_ms + ttl_ms) // 1000, {})[key] = None
        self._of_user.setdefault(user, OrderedDict())[key] = None
        self._of_client[client_id, user] += 1
        self._bytes += size

    def find(self, client_id: str, correlation_id: str) -> WaitingRequester | None:
        """Returns the note for this reply; None if no client that waits for it is known."""
        note = self._notes.get((client_id, correlation_id))
        return note if note is not None and note.ends_ms > self._services.monotonic_ms() else None

    def waits(self, client_id: str, user: int) -> bool:
        """Returns True if this client of the user waits for any reply."""
        return (client_id, user) in self._of_client

    @property
    def age_ms(self) -> int:
        """Milliseconds since this node began to take notes."""
        return self._services.monotonic_ms() - self._began_ms

    def may_lack(self, ttl_ms: int, user: int) -> bool:
        """Returns True if a note of the user from the last `ttl_ms` may have been removed to make room."""
        since_ms = self._services.monotonic_ms() - ttl_ms
        return self._lost_ms.get(user, since_ms) > since_ms

    def _make_room(self, user: int) -> None:
        """Removes one note to make room: the user's oldest, if the user has at least an average number of notes, else
        the oldest of the user with the most notes."""
        mine = self._of_user.get(user, ())
        if not mine or len(mine) < len(self._notes) // len(self._of_user):
            charge(1 + len(self._of_user) // 16)
            user = max(self._of_user, key=lambda each: len(self._of_user[each]))
        self._forget(next(iter(self._of_user[user])))
        self._lost_ms[user] = self._services.monotonic_ms()

    def _forget_ended(self) -> None:
        now_ms = self._services.monotonic_ms()
        if self._swept_ms // 1000 < now_ms // 1000:
            ended = [second for second in self._ending if second < now_ms // 1000]
            for key in list(islice((key for second in ended for key in self._ending[second]), ENDED_PER_TICK)):
                charge(ITEM_UNITS)
                self._forget(key)
            if not any(second in self._ending for second in ended):
                self._swept_ms = now_ms
        if len(self._lost_ms) > len(self._of_user) + ENDED_PER_TICK:
            since_ms = now_ms - TTL_MAX_MS
            self._lost_ms = {user: lost_ms for user, lost_ms in self._lost_ms.items() if lost_ms > since_ms}

    def _forget(self, key: RequesterKey) -> None:
        note = self._notes.pop(key)
        self._bytes -= note.size
        second = note.ends_ms // 1000
        del self._ending[second][key]
        if not self._ending[second]:
            del self._ending[second]
        mine = self._of_user[note.user]
        del mine[key]
        if not mine:
            del self._of_user[note.user]
        client = key[0], note.user
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]
