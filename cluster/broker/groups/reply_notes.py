"""Notes of who waits for a reply: a send with REPLY_TO_CLIENT names a client id and a correlation id, and the node that
takes it notes its user and its connection.

A reply names only these two texts, and anybody can write them. The note says whose they are: the reply goes to the
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
"""The least milliseconds that a note lasts. The property TTL is text of a client: Java writes milliseconds into it, Go
whole seconds (rocketmq-client-go 2.1.2), so a short time may be a long one."""
TTL_MAX_MS: Final = 300_000
NOTES_MAX: Final = 50_000
BYTES_MAX: Final = 16 << 20
NOTE_BYTES: Final = 500
"""The bytes of a note besides its texts."""
ENDED_PER_TICK: Final = 2_000
"""The most notes that one tick or one new note forgets because their time is over."""

RequesterKey = tuple[str, str]
"""(client id, correlation id)."""


class WaitingRequester(NamedTuple):
    """A requester that waits."""

    user: int
    connection: Client
    ends_ms: int
    """Time of the loop's clock until which the requester waits."""
    size: int


def ttl_of(text: str) -> int:
    """Returns the milliseconds for which a note lasts, by the property TTL and within bounds."""
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
        """User -> its notes, the oldest first."""
        self._of_client: Counter[tuple[str, int]] = Counter()
        """(client id, user) -> the number of its notes."""
        self._ending: dict[int, dict[RequesterKey, None]] = {}
        """Second of the loop's clock -> the notes that end in it. No second has none."""
        self._bytes = 0
        self._swept_ms = self._began_ms
        self._lost_ms: dict[int, int] = {}
        """User -> when one of its notes was last forgotten before its time."""

    def __len__(self) -> int:
        return len(self._notes)

    def part(self) -> Part:
        """Returns the hook through which the node calls this service."""
        return Part(name="reply notes", tick=lambda _: self._forget_ended())

    def note(self, client_id: str, correlation_id: str, ttl_ms: int, user: int, connection: Client) -> None:
        """Records who waits for the reply. The note of another user with the same ids stays: the second user may have
        read them in the first user's request."""
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
        """Returns the note of the client that waits for this reply; None if no waiting client is known."""
        note = self._notes.get((client_id, correlation_id))
        return note if note is not None and note.ends_ms > self._services.monotonic_ms() else None

    def waits(self, client_id: str, user: int) -> bool:
        """Returns True if that client waits for a reply, whichever."""
        return (client_id, user) in self._of_client

    @property
    def age_ms(self) -> int:
        """Milliseconds for which this node has taken notes."""
        return self._services.monotonic_ms() - self._began_ms

    def may_lack(self, ttl_ms: int, user: int) -> bool:
        """Returns True if a request of the user in the last `ttl_ms` was perhaps noted here and is no longer, because
        the user had too many notes."""
        since_ms = self._services.monotonic_ms() - ttl_ms
        return self._lost_ms.get(user, since_ms) > since_ms

    def _make_room(self, user: int) -> None:
        """Forgets the oldest note of the user if it has more than its share, else that of the user with most."""
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
