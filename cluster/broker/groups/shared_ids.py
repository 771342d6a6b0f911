"""Remembers client ids that several clients use, as this node has noticed them. There are three kinds: clients of two
users, of which one was refused in a group; clients of one user that read the same queues; and replies that reached
nobody, because their requester could not be told from another user's client.

Two users with one client id disturb each other in two cases only: in a consumer group, whose members divide its queues
by their client ids, and for a reply, which names its requester only by the client id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.runtime.findings import Code, Condition

if TYPE_CHECKING:
    from statemachine.access.user_rows import User

CLIENT_ID_SHARED: Final = Code("client_id_shared", "warning", "raftmq group list")
REPLY_UNDELIVERED: Final = Code("reply_undelivered", "warning", "raftmq group list")
SHARED_TOLD_MAX: Final = 3
"""The most findings about client ids with two clients at a time."""
KEPT_MAX: Final = 64
"""The most client ids of each kind that are remembered; the newest stay."""
SHOWN_MS: Final = 600_000
"""Milliseconds for which a client id is reported after it was last noticed. Clients send a heartbeat every 30 s."""


class SharedId(NamedTuple):
    """A client id that several clients have, and when that was noticed."""

    client_id: str
    group: str
    """The consumer group in which the clients met; "" for a reply."""
    users: tuple[int, ...]
    """The ids of the users who use the client id; in a group, the user whose client stayed comes first."""
    times: int
    first_ms: int
    """The wall-clock time at which it was first noticed, in milliseconds."""
    last_ms: int


class SharedIds:
    """The client ids that one node has noticed lately. Event loop only."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._refused: OrderedDict[tuple[str, str], SharedId] = OrderedDict()
        self._twice: OrderedDict[tuple[str, str], SharedId] = OrderedDict()
        self._undelivered: OrderedDict[tuple[str, str], SharedId] = OrderedDict()

    def refused(self, group: str, client_id: str, holder: int, user: int) -> None:
        """Records that `user`'s client was refused in the group, because `holder`'s client has the same client id."""
        self._note(self._refused, client_id, group, (holder, user))

    def twice(self, group: str, client_id: str, user: int) -> None:
        """Records that heartbeats over two connections of the user name the same client of the group, alternately."""
        self._note(self._twice, client_id, group, (user,))

    def undelivered(self, client_id: str, users: tuple[int, ...]) -> None:
        """Records that a reply to that client id reached nobody, because each of these users may have asked for it."""
        self._note(self._undelivered, client_id, "", users)

    def conditions(self, by_id: Mapping[int, User], me: str) -> Iterator[Condition]:
        """Yields a condition for each conflict that was noticed lately. `by_id`: id -> user; `me`: the name of this
        node in findings."""

        def named(users: tuple[int, ...]) -> str:
            return " and ".join(by_id[user].name if user in by_id else "nobody proven" for user in users)

        if refused := self.refused_lately():
            newest = refused[0]
            says = (
                f"clients of two users have one client id in one consumer group, and the second was refused: "
                f"client {newest.client_id} of group {newest.group}, users {named(newest.users)}; "
                f"{len(refused)} such ids in all"
            )
            yield Condition(CLIENT_ID_SHARED, me, says, since_ms=min(each.first_ms for each in refused))
        for twice in self.twice_lately()[:SHARED_TOLD_MAX]:
            says = (
                f"heartbeats over two connections name client {twice.client_id} in group {twice.group}: two clients "
                "have one client id, and read the same queues, so that both get every message of them"
            )
            about = f"client {twice.client_id} of group {twice.group}"
            do_now = f"raftmq group describe {twice.group}"
            yield Condition(CLIENT_ID_SHARED, about, says, do_now, since_ms=twice.first_ms)
        if undelivered := self.undelivered_lately():
            newest = undelivered[0]
            says = (
                f"a reply reached nobody, because its requester is one of several users with one client id: client "
                f"{newest.client_id}, users {named(newest.users)}; "
                f"{sum(each.times for each in undelivered)} such replies"
            )
            yield Condition(REPLY_UNDELIVERED, me, says, since_ms=min(each.first_ms for each in undelivered))

    def _note(
        self, kept: OrderedDict[tuple[str, str], SharedId], client_id: str, group: str, users: tuple[int, ...]
    ) -> None:
        now_ms, key = self._wall_ms(), (group, client_id)
        before = kept.pop(key, None)
        if before is None or now_ms - before.last_ms >= SHOWN_MS:
            before = SharedId(client_id, group, users, 0, now_ms, now_ms)
        kept[key] = before._replace(users=users, times=before.times + 1, last_ms=now_ms)
        if len(kept) > KEPT_MAX:
            kept.popitem(last=False)

    def refused_lately(self) -> list[SharedId]:
        """Returns the client ids of clients that were refused lately, newest first."""
        return self._lately(self._refused)

    def twice_lately(self) -> list[SharedId]:
        """Returns the client ids that two clients of one user used lately in one group, newest first."""
        return self._lately(self._twice)

    def undelivered_lately(self) -> list[SharedId]:
        """Returns the client ids to which a reply could lately not be delivered, newest first."""
        return self._lately(self._undelivered)

    def _lately(self, kept: OrderedDict[tuple[str, str], SharedId]) -> list[SharedId]:
        since_ms = self._wall_ms() - SHOWN_MS
        return [each for each in reversed(kept.values()) if each.last_ms > since_ms]
