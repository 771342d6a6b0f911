"""One consumer group as its members' heartbeats describe it: who is in it, what they want, and who shares a topic's
queues.

RocketMQ's clients divide each topic among all members of a group, also among those that do not want it: nobody reads
their shares. A group is therefore divided *by topic*, among the members that want it, while the wishes differ and every
member has said that it knows this rule (docs/wire-protocol.md). One other member makes it RocketMQ's rule for all.

A client id may be that of two clients over two connections. The one whose heartbeat is the newest is the member, so
that both read the same queues; the other is kept in `beside`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from cluster.broker.filters.subscription import Subscription
from cluster.broker.groups.group_notices import Budget
from raftlog.work import ITEM_UNITS, charge
from statemachine.access.users import NOBODY
from statemachine.rows.sorted_map import SortedMap

if TYPE_CHECKING:
    from cluster.broker.services import Client
    from cluster.runtime.resource_budget import Share

CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
PUSH = "CONSUME_PASSIVELY"
"""The consume type in heartbeats of push consumers."""
WISHES_BYTES_MAX = 1 << 20
"""The most bytes of the topics of one group's members, those of equal wishes counted once, with which it is divided by
topic: every member asks for all of them."""
NAMED_MAX = 3
"""The most topics, and members of each, that `unread` names."""


class Member:
    """A client in one group."""

    __slots__ = (
        "by_topic",
        "client_id",
        "connection",
        "fingerprint",
        "judged",
        "language",
        "last_seen_ms",
        "named_ms",
        "since_ms",
        "topics",
        "user",
        "version",
    )

    def __init__(
        self, client_id: str, connection: Client, language: str, version: int, user: int = NOBODY, judged: int = 0
    ) -> None:
        self.client_id = client_id
        self.user = user
        """Id of the user who signed the heartbeat; NOBODY if none is proven."""
        self.connection = connection
        self.language = language
        self.version = version
        self.judged = judged
        """The version of users and rules by which it was last judged; 0: it never was."""
        self.topics: frozenset[str] | None = None
        """A consumer's wish: the topics that its heartbeats list. None until one of them carried subscriptions."""
        self.by_topic = False
        """True if a consumer can divide a topic among the members that want it."""
        self.last_seen_ms = 0
        self.since_ms = 0
        """The time since which heartbeats over its connection have named it."""
        self.named_ms = 0
        """The time since which its connection is known by the client id alone."""
        self.fingerprint = 0
        """The fingerprint of the last heartbeat that carried subscriptions; 0 if the client does not send one."""


ClientKey = tuple[int, str]
"""(user, client id): a client."""


class ConsumerGroup:
    """The members of a consumer group and the subscriptions of the group as a whole."""

    __slots__ = (
        "__weakref__",
        "_by_topic",
        "_wishes_bytes_max",
        "beside",
        "budget",
        "consume_from_where",
        "consume_type",
        "ids_bytes",
        "judged",
        "members",
        "message_model",
        "since_ms",
        "stands",
        "subscribed",
        "subscriptions",
        "text",
        "version",
        "wishes",
        "wishes_bytes",
    )

    def __init__(
        self,
        stands: Callable[[Member], bool] = lambda _: True,
        since_ms: int = 0,
        wishes_bytes_max: int = WISHES_BYTES_MAX,
    ) -> None:
        """`stands` returns True if a member may stay in the group. `since_ms`: the time of its first heartbeat.
        `wishes_bytes_max`: the most bytes of wishes with which it is divided by topic."""
        self._wishes_bytes_max = wishes_bytes_max
        self.stands = stands
        self.since_ms = since_ms
        self.judged = 0
        """The version of users and rules by which all members were judged."""
        self.members: SortedMap[str, Member] = SortedMap()
        """Client id -> member, sorted, so that every node has the same order."""
        self.beside: dict[str, dict[Client, Member]] = {}
        """Client id -> connections over which that client is named, too, besides the member's own."""
        self.wishes: dict[frozenset[str], tuple[frozenset[str], int]] = {}
        """The members' wishes, each with the one object that stands for it, and the number of members that have it."""
        self.wishes_bytes = 0
        self._by_topic = 0
        """The number of members that can divide by topic."""
        self.version = 0
        """The version of the list of ids and of what they want. It differs after each change."""
        self.ids_bytes = 0
        """The number of characters of all client ids together."""
        self.budget = Budget()
        self.subscriptions: dict[str, Subscription] = {}
        self.subscribed = False
        """True if any member has told `subscriptions`. After a restart, the first heartbeats may come without them."""
        self.text: Share | None = None
        """The bytes of the node's room that the group's subscriptions hold."""
        self.message_model = CLUSTERING
        self.consume_type = PUSH
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"

    def values(self) -> Iterator[Member]:
        """Yields all members, each once for every connection that names it. Members may come and go during the
        iteration."""
        for member in self.members.values():
            yield member
            if self.beside:
                yield from list(self.beside.get(member.client_id, {}).values())

    def get(self, key: ClientKey) -> Member | None:
        """Returns the member with that client id, if it is that user's."""
        user, client_id = key
        member = self.members.get(client_id)
        return member if member is not None and member.user == user else None

    def over(self, connection: Client, key: ClientKey) -> Member | None:
        """Returns the member with that client id as the connection names it; None if it does not, or is another
        user's."""
        user, client_id = key
        member = self.members.get(client_id)
        if member is not None and member.connection is not connection:
            member = self.beside.get(client_id, {}).get(connection)
        return member if member is not None and member.user == user else None

    def put(self, member: Member) -> None:
        """Adds a member, or replaces the one with its client id."""
        old = self.members.get(member.client_id)
        if old is None:
            self.ids_bytes += len(member.client_id)
        if old is None or (old.topics, old.by_topic) != (member.topics, member.by_topic):
            self.version += 1
            self._count_wish(member, 1)
            if old is not None:
                self._count_wish(old, -1)
        else:
            member.topics = old.topics
        self.members.put(member.client_id, member)

    def keep_beside(self, old: Member) -> None:
        """Keeps the heartbeat of a client's older connection beside that of the newer one, which is now the member."""
        self.beside.setdefault(old.client_id, {})[old.connection] = old

    def take_beside(self, client_id: str, connection: Client) -> Member | None:
        """Removes and returns the heartbeat that connection sent for a client whose member came over another
        connection."""
        others = self.beside.get(client_id, {})
        found = others.pop(connection, None)
        if found is not None and not others:
            del self.beside[client_id]
        return found

    def remove(self, member: Member) -> bool:
        """Removes a member, or the heartbeat of one of its connections; the member or the heartbeat must exist. Returns
        True if the client is gone.

        It is not gone if another connection has sent heartbeats for its id since this one began to: then that is
        another client with the same id. A connection that did so only before may be what a client left behind when it
        connected again.
        """
        if self.members[member.client_id] is not member:
            self.take_beside(member.client_id, member.connection)
            return False
        others = self.beside.get(member.client_id, {}).values()
        heir = max((one for one in others if one.last_seen_ms > member.since_ms), key=_last_seen, default=None)
        if heir is not None:
            self.take_beside(member.client_id, heir.connection)
            self.put(heir)
            return False
        self.members.remove(member.client_id)
        self.ids_bytes -= len(member.client_id)
        self._count_wish(member, -1)
        self.version += 1
        return True

    def _count_wish(self, member: Member, by: int) -> None:
        self._by_topic += by * member.by_topic
        if member.topics is None:
            return
        topics_wanted, count = self.wishes.get(member.topics, (member.topics, 0))
        member.topics = topics_wanted
        if count == 0:
            self.wishes_bytes += wish_bytes(topics_wanted)
        if count + by:
            self.wishes[topics_wanted] = topics_wanted, count + by
        else:
            del self.wishes[topics_wanted]
            self.wishes_bytes -= wish_bytes(topics_wanted)

    @property
    def all_by_topic(self) -> bool:
        """True if all members can divide by topic: they are RaftMQ's own clients."""
        return self._by_topic == len(self.members)

    @property
    def by_topic(self) -> bool:
        """True if the group is divided by topic."""
        some_differ = len(self.wishes) > 1 and self.wishes_bytes <= self._wishes_bytes_max
        return some_differ and self._by_topic == len(self.members)

    def sharers(self, topic: str) -> list[str]:
        """Returns the client ids among which the topic's queues are divided, sorted."""
        if not self.by_topic:
            return list(self.members)
        return [client_id for client_id, member in self.members.items() if _wants(member, topic)]

    def wants(self, client_id: str, topic: str) -> bool:
        """Returns False if the member is known not to read its queues of the topic."""
        member = self.members.get(client_id)
        return member is None or _wants(member, topic)

    def unread(self) -> dict[str, list[str]]:
        """Returns topic -> members to which queues of it fall that do not want it, a few of each. Empty if the group is
        divided by topic."""
        if len(self.wishes) < 2 or self.by_topic or self.message_model != CLUSTERING:
            return {}
        charge(ITEM_UNITS * (len(self.wishes) + NAMED_MAX * len(self.members)))
        some: frozenset[str] = frozenset().union(*self.wishes)
        topics = sorted(some - frozenset.intersection(*self.wishes))[:NAMED_MAX]
        return {topic: list(islice(self._idle(topic), NAMED_MAX)) for topic in topics}

    def _idle(self, topic: str) -> Iterator[str]:
        return (client_id for client_id, member in self.members.items() if not _wants(member, topic))

    def clients(self) -> Iterator[Client]:
        """Yields the connections of all members that still may be in the group
        (`cluster.broker.groups.group_notices.NotifiedGroup`)."""
        return (member.connection for member in self.values() if self.stands(member))

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Merges one member's subscriptions into those of the group: newer versions replace older ones. Returns True if
        anything changed."""
        merged = dict(self.subscriptions)
        for new in subscriptions:
            old = merged.get(new.topic)
            if old is None or new.version > old.version:
                merged[new.topic] = new
        changed = merged != self.subscriptions
        self.subscriptions = merged
        self.subscribed = True
        return changed

    def narrow(self) -> bool:
        """Removes the subscriptions to topics that no member wants any more, unless there are members of which that is
        not known. Returns True if there were any."""
        charge(ITEM_UNITS * (len(self.wishes) + len(self.subscriptions)))
        if sum([count for _, count in self.wishes.values()]) < len(self.members):
            return False
        wanted: frozenset[str] = frozenset().union(*self.wishes)
        kept = {topic: each for topic, each in self.subscriptions.items() if topic in wanted}
        narrowed = len(kept) < len(self.subscriptions)
        self.subscriptions = kept
        return narrowed

    def hold_text(self, share: Callable[[], Share]) -> None:
        """Counts what subscriptions and wishes take now, in bytes. `share()` makes the group's share of the node's
        memory for them."""
        charge(ITEM_UNITS * (len(self.subscriptions) + len(self.wishes)))
        if self.text is None:
            self.text = share()
        self.text.hold(text_bytes(self.subscriptions.values()) + self.wishes_bytes)

    def was_judged(self, version: int) -> None:
        """Records that all members were checked by that version of users and rules."""
        self.judged = version


def text_bytes(subscriptions: Iterable[Subscription]) -> int:
    """Returns the approximate bytes that the subscriptions take in memory."""
    return sum(4 * (len(one.topic) + len(one.sub_string) + len(one.expression_type)) + 200 for one in subscriptions)


def wish_bytes(topics: Iterable[str]) -> int:
    """Returns the approximate number of bytes that a member's wish, the topics that it wants to read, takes in
    memory."""
    return sum(4 * len(topic) + 100 for topic in topics)


def _wants(member: Member, topic: str) -> bool:
    return member.topics is None or topic in member.topics


_last_seen = attrgetter("last_seen_ms")
