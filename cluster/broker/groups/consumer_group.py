"""One consumer group as its members' heartbeats describe it: its members, the topics that each wants to read (its
*wish*), and the members among which a topic's queues are divided.

RocketMQ's clients divide each topic among all members of a group. A member that does not want the topic gets queues
too, which nobody reads. So a topic is divided among the members that want it (*by topic*) if the wishes differ and
every member has said that it knows this rule (docs/wire-protocol.md). A single member that does not know it makes
RocketMQ's rule apply to the whole group.

Two clients over two connections may have the same client id. The client with the newest heartbeat is then the member,
and both read the same queues. The other client is kept in `beside`.
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
"""The most bytes of all different wishes of a group with which it is still divided by topic. There is a limit because
every member asks for all the wishes."""
NAMED_MAX = 3
"""The most topics that `unread` returns, and the most members for each."""


class Member:
    """A client as a member of one producer or consumer group."""

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
        """The id of the user who signed the heartbeat; NOBODY if no user is proven."""
        self.connection = connection
        self.language = language
        self.version = version
        self.judged = judged
        """The version of users and rules by which the member's right was last checked; 0 if it never was."""
        self.topics: frozenset[str] | None = None
        """The consumer's wish: the topics that its heartbeats list. None until a heartbeat has carried
        subscriptions."""
        self.by_topic = False
        """True if the consumer knows how to divide a topic among only the members that want it."""
        self.last_seen_ms = 0
        self.since_ms = 0
        """The time, in milliseconds, of the first heartbeat over this connection that named the member."""
        self.named_ms = 0
        """The time, in milliseconds, since which this producer's connection can be found by the client id alone."""
        self.fingerprint = 0
        """The fingerprint of the last heartbeat that carried subscriptions; 0 if the client sends none."""


ClientKey = tuple[int, str]
"""(user id, client id), which identify a client."""


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
        """`stands` returns True if a member has the right to be in the group. `since_ms`: the time of the group's first
        heartbeat. `wishes_bytes_max`: the most bytes of wishes with which the group is divided by topic."""
        self._wishes_bytes_max = wishes_bytes_max
        self.stands = stands
        self.since_ms = since_ms
        self.judged = 0
        """The version of users and rules by which the rights of all members were last checked."""
        self.members: SortedMap[str, Member] = SortedMap()
        """Client id -> member, sorted by client id, so that every node has the same order."""
        self.beside: dict[str, dict[Client, Member]] = {}
        """Client id -> connection -> the older heartbeat over that connection, if several connections name the client
        id."""
        self.wishes: dict[frozenset[str], tuple[frozenset[str], int]] = {}
        """Wish -> (the one object that all members with this wish share, the number of these members)."""
        self.wishes_bytes = 0
        self._by_topic = 0
        """The number of members that know how to divide by topic."""
        self.version = 0
        """The version of the list of members and of their wishes. Each change of them increases it."""
        self.ids_bytes = 0
        """The number of characters of all members' client ids together."""
        self.budget = Budget()
        self.subscriptions: dict[str, Subscription] = {}
        self.subscribed = False
        """True if any member has sent subscriptions. After a restart of the node, the first heartbeats may come without
        them."""
        self.text: Share | None = None
        """The group's share of the memory that this node allows for subscriptions; None if it holds none yet."""
        self.message_model = CLUSTERING
        self.consume_type = PUSH
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"

    def values(self) -> Iterator[Member]:
        """Yields all members, and after each the older heartbeats of its client id over other connections. Members may
        come and go during the iteration."""
        for member in self.members.values():
            yield member
            if self.beside:
                yield from list(self.beside.get(member.client_id, {}).values())

    def get(self, key: ClientKey) -> Member | None:
        """Returns the member with that client id; None if there is none, or if it belongs to another user."""
        user, client_id = key
        member = self.members.get(client_id)
        return member if member is not None and member.user == user else None

    def over(self, connection: Client, key: ClientKey) -> Member | None:
        """Returns the member, or the older heartbeat of it, that came over that connection. None if the connection has
        not named the client id, or if the client belongs to another user."""
        user, client_id = key
        member = self.members.get(client_id)
        if member is not None and member.connection is not connection:
            member = self.beside.get(client_id, {}).get(connection)
        return member if member is not None and member.user == user else None

    def put(self, member: Member) -> None:
        """Adds a member. It replaces a member with the same client id."""
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
        """Keeps the heartbeat of an older connection in `beside`, because a newer connection now has the member of that
        client id."""
        self.beside.setdefault(old.client_id, {})[old.connection] = old

    def take_beside(self, client_id: str, connection: Client) -> Member | None:
        """Removes a heartbeat from `beside` and returns it: the one over that connection for that client id. None if
        there is none."""
        others = self.beside.get(client_id, {})
        found = others.pop(connection, None)
        if found is not None and not others:
            del self.beside[client_id]
        return found

    def remove(self, member: Member) -> bool:
        """Removes a member, or an older heartbeat from `beside`; one of the two must be there. Returns True if no
        member with the client id is left.

        The newest of the other connections becomes the member if it has sent a heartbeat for this client id after the
        removed member's first one: it is then another client with the same id. Connections with only earlier heartbeats
        may be left over from before the client connected again, so they do not count.
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
        """True if all members know how to divide by topic, as RaftMQ's own clients do."""
        return self._by_topic == len(self.members)

    @property
    def by_topic(self) -> bool:
        """True if each topic is divided among only the members that want it."""
        some_differ = len(self.wishes) > 1 and self.wishes_bytes <= self._wishes_bytes_max
        return some_differ and self._by_topic == len(self.members)

    def sharers(self, topic: str) -> list[str]:
        """Returns the client ids among which the topic's queues are divided, sorted."""
        if not self.by_topic:
            return list(self.members)
        return [client_id for client_id, member in self.members.items() if _wants(member, topic)]

    def wants(self, client_id: str, topic: str) -> bool:
        """Returns False if the member is known not to want the topic. Returns True if its wish is unknown, or if it is
        not a member."""
        member = self.members.get(client_id)
        return member is None or _wants(member, topic)

    def unread(self) -> dict[str, list[str]]:
        """Returns topic -> members that get queues of the topic but do not want it: at most NAMED_MAX topics, and at
        most NAMED_MAX members for each. Empty if the group is divided by topic, if all wishes are equal, or if each
        member reads all messages (BROADCASTING)."""
        if len(self.wishes) < 2 or self.by_topic or self.message_model != CLUSTERING:
            return {}
        charge(ITEM_UNITS * (len(self.wishes) + NAMED_MAX * len(self.members)))
        some: frozenset[str] = frozenset().union(*self.wishes)
        topics = sorted(some - frozenset.intersection(*self.wishes))[:NAMED_MAX]
        return {topic: list(islice(self._idle(topic), NAMED_MAX)) for topic in topics}

    def _idle(self, topic: str) -> Iterator[str]:
        return (client_id for client_id, member in self.members.items() if not _wants(member, topic))

    def clients(self) -> Iterator[Client]:
        """Yields the connections of all members that have the right to be in the group, for notices
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
        """Removes the subscriptions to topics that no member wants any more, and returns True if there were any. Does
        nothing if the wish of any member is unknown."""
        charge(ITEM_UNITS * (len(self.wishes) + len(self.subscriptions)))
        if sum([count for _, count in self.wishes.values()]) < len(self.members):
            return False
        wanted: frozenset[str] = frozenset().union(*self.wishes)
        kept = {topic: each for topic, each in self.subscriptions.items() if topic in wanted}
        narrowed = len(kept) < len(self.subscriptions)
        self.subscriptions = kept
        return narrowed

    def hold_text(self, share: Callable[[], Share]) -> None:
        """Updates the bytes that the group's subscriptions and wishes take of this node's memory for them. `share`
        makes the group's share of that memory, at the first call."""
        charge(ITEM_UNITS * (len(self.subscriptions) + len(self.wishes)))
        if self.text is None:
            self.text = share()
        self.text.hold(text_bytes(self.subscriptions.values()) + self.wishes_bytes)

    def was_judged(self, version: int) -> None:
        """Records the version of users and rules by which the rights of all members were just checked."""
        self.judged = version


def text_bytes(subscriptions: Iterable[Subscription]) -> int:
    """Returns the approximate bytes of memory that the subscriptions take."""
    return sum(4 * (len(one.topic) + len(one.sub_string) + len(one.expression_type)) + 200 for one in subscriptions)


def wish_bytes(topics: Iterable[str]) -> int:
    """Returns the approximate bytes of memory that a member's wish takes. `topics`: the topics that it wants to
    read."""
    return sum(4 * len(topic) + 100 for topic in topics)


def _wants(member: Member, topic: str) -> bool:
    return member.topics is None or topic in member.topics


_last_seen = attrgetter("last_seen_ms")
