"""The clients that produce and consume through this node. Heartbeats announce them; they are forgotten when they
disconnect or after 120 s of silence.

The lists are local by design: consumers send heartbeats to every node of the group, so each node knows all of them, and
a new leader answers for the group at once. Producers are known to the node that they called. Time in which this node
itself stood still does not count as a client's silence.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from enum import StrEnum

from cluster.broker.filters.subscription import Subscription, check_text
from cluster.broker.groups.group_notices import Budget, GroupNotices
from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Client, Services
from cluster.runtime.resource_budget import Room, Share
from raftlog.work import ITEM_UNITS, charge
from statemachine.rows.sorted_map import SortedMap

EXPIRY_MS = 120_000
SCAN_MS = 10_000
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
PUSH = "CONSUME_PASSIVELY"
"""The consume type in heartbeats of push consumers."""
CLIENT_ID_MAX = 1024
CONNECTION_GROUPS_MAX, MEMBERSHIPS_MAX = 1_000, 100_000
"""The most groups in which the clients of one connection may be, and the most of all connections together."""
FIRST_HEARTBEAT_MS = 35_000
"""Milliseconds after a client connected, or this node started, in which its first heartbeat may still be missing:
clients send one every 30 s, whenever they connected."""
TEXT_BYTES_MAX = 64 << 20
"""The most bytes of all groups' subscriptions that this node keeps."""
IDS_BYTES_MAX = 8 << 20
"""The most bytes of one group's client ids together: every member asks for the whole list."""
TRIES_MAX = 64
"""The number of members among which one with an open connection is searched: the others will soon be forgotten."""
LOOKS = 16
"""The number of members that one step of a scan looks at."""


class Role(StrEnum):
    """The role of a client in a group. Values are on the wire between nodes."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class Member:
    """A client in one group."""

    __slots__ = ("client_id", "connection", "fingerprint", "language", "last_seen_ms", "version")

    def __init__(self, client_id: str, connection: Client, language: str, version: int) -> None:
        self.client_id = client_id
        self.connection = connection
        self.language = language
        self.version = version
        self.last_seen_ms = 0
        self.fingerprint = 0
        """The fingerprint of the last heartbeat that carried subscriptions; 0 if the client does not send one."""


class ConsumerGroup:
    """The members of a consumer group and the subscriptions of the group as a whole."""

    __slots__ = (
        "__weakref__",
        "budget",
        "consume_from_where",
        "consume_type",
        "ids_bytes",
        "members",
        "message_model",
        "subscribed",
        "subscriptions",
        "text",
        "version",
    )

    def __init__(self) -> None:
        self.members: SortedMap[str, Member] = SortedMap()
        """Client id -> member, sorted, so that every node has the same order."""
        self.version = 0
        """The version of the list of ids. It differs after each change."""
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

    def clients(self) -> Iterator[Client]:
        """Yields the connections of all members (`cluster.broker.groups.group_notices.Told`)."""
        return (member.connection for member in self.members.values())

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Takes one member's subscriptions as the group's: newer versions replace older ones, topics that are not
        listed are removed. Returns True if anything changed."""
        merged: dict[str, Subscription] = {}
        for new in subscriptions:
            old = self.subscriptions.get(new.topic)
            merged[new.topic] = new if old is None or new.version > old.version else old
        changed = merged != self.subscriptions
        self.subscriptions = merged
        self.subscribed = True
        return changed


class Members:
    """All groups of this node. A scan runs periodically while there is any member that can expire."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._notices = GroupNotices(services)
        self.consumers: SortedMap[str, ConsumerGroup] = SortedMap()
        self.producers: SortedMap[str, SortedMap[str, Member]] = SortedMap()
        self._producer_clients: dict[str, SortedMap[str, Member]] = {}
        """Client id -> producer group -> member: members known by their client id alone."""
        self._turn = 0
        """Counts choices among several members, so that each is chosen in turn."""
        self._groups_of: dict[Client, _Memberships] = {}
        """Connection -> its memberships, so that the end of a connection looks at no other client's groups."""
        self._count = 0
        """The number of all memberships."""
        self._text = Room(TEXT_BYTES_MAX, lambda callback: services.call_later(0, callback))
        """The room for the subscriptions of all groups."""
        self._scanning = False
        self._began_ms = services.awake_ms()

    def consumer_ids(self, group: str) -> list[str]:
        """Returns the client ids of a consumer group, sorted; every node returns the same list."""
        found = self.consumers.get(group)
        return list(found.members) if found is not None else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Returns the subscription to the topic that the group's members on this node told."""
        found = self.consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def clients_of(self, connection: Client, group: str) -> frozenset[str]:
        """Returns the ids of the group's consumers that this connection's heartbeats named."""
        mine = self._groups_of.get(connection)
        return frozenset(mine.ids.get((Role.CONSUMER, group), ())) if mine is not None else frozenset()

    def has(self, connection: Client) -> bool:
        """Returns True if a heartbeat of this connection named a member that is not forgotten."""
        mine = self._groups_of.get(connection)
        return mine is not None and bool(mine.ids)

    def is_consumer(self, group: str, client_id: str) -> bool:
        """Returns True if heartbeats say that this client is in the group now. Also True if this node has just started
        and cannot know."""
        found = self.consumers.get(group)
        if found is not None and client_id in found.members:
            return True
        return self._services.awake_ms() - self._began_ms < FIRST_HEARTBEAT_MS

    def of(self, connection: Client) -> list[tuple[Role, str, Member]]:
        """Returns (role, group, member) for each group that this connection's heartbeats named."""
        found = []
        mine = self._groups_of.get(connection)
        for (role, group), client_ids in mine.ids.items() if mine is not None else ():
            members = self._members_of(role, group)
            found += [(role, group, members[client_id]) for client_id in client_ids if client_id in members]
        return found

    def find(self, role: Role, group: str | None, client_id: str | None) -> Member | None:
        """Returns a connected member: the client `client_id`, or with None each member of the group in turn. With
        `group` None it searches all producers, which needs a client id."""
        candidates: SortedMap[str, Member]
        if group is None:
            candidates = self._producer_clients.get(client_id or "", _NOBODY) if role is Role.PRODUCER else _NOBODY
        else:
            candidates = self._members_of(role, group)
            if client_id is not None:
                named = candidates.get(client_id)
                return named if named is not None and not named.connection.closed else None
        count = len(candidates)
        for _ in range(min(count, TRIES_MAX)):
            self._turn += 1
            member = candidates.get(candidates.key_at(self._turn % count))
            if member is not None and not member.connection.closed:
                return member
        return None

    def _members_of(self, role: Role, group: str) -> SortedMap[str, Member]:
        if role is Role.PRODUCER:
            return self.producers.get(group, _NOBODY)
        found = self.consumers.get(group)
        return found.members if found is not None else _NOBODY

    def add_producer(self, group: str, member: Member) -> None:
        """Adds or refreshes a producer."""
        members = self.producers.get(group)
        if members is None:
            members = SortedMap()
            self.producers.put(group, members)
        self._note(members, member, Role.PRODUCER, group)
        groups = self._producer_clients.get(member.client_id)
        if groups is None:
            groups = self._producer_clients[member.client_id] = SortedMap()
        groups.put(group, member)

    def add_consumer(
        self, group: str, member: Member, subscriptions: list[Subscription] | None, message_model: str
    ) -> bool:
        """Adds or refreshes a consumer. With None the group's subscriptions stay. Returns True if the group's
        subscriptions changed.

        Members of the group are notified (40) of a new member, a new connection and changed subscriptions. Raises
        Refused.
        """
        found = self.consumers.get(group)
        if subscriptions is not None:
            charge(ITEM_UNITS * len(subscriptions))
            self._check_text(group, found, subscriptions)
        if found is None:
            found = ConsumerGroup()
            self.consumers.put(group, found)
        elif member.client_id not in found.members:
            _check_ids(group, found, member.client_id)
        found.message_model = message_model
        if member.client_id not in found.members:
            found.version += 1
            found.ids_bytes += len(member.client_id)
        joined = self._note(found.members, member, Role.CONSUMER, group)
        changed = subscriptions is not None and found.subscribe(subscriptions)
        if changed:
            if found.text is None:
                found.text = self._text.share()
            found.text.hold(_text_bytes(found.subscriptions.values()))
        if joined or changed:
            self._changed(group, found)
        return changed

    def remove(
        self, connection: Client, client_id: str, consumer_group: str | None, producer_group: str | None
    ) -> None:
        """Removes a client that unregisters from a group (35). It stays if another connection named it later."""
        for role, group in ((Role.PRODUCER, producer_group), (Role.CONSUMER, consumer_group)):
            if group:
                member = self._members_of(role, group).get(client_id)
                if member is not None and member.connection is connection:
                    self._drop(role, group, client_id)

    def check(self, connection: Client, client_id: str, groups: int) -> None:
        """Raises Refused if the client may not be in that many more groups. Groups in which it already is are always
        accepted."""
        known = self._groups_of.get(connection)
        mine = known.count if known is not None else 0
        if len(client_id) > CLIENT_ID_MAX:
            remark = f"a clientID of {len(client_id)} characters is too long; at most {CLIENT_ID_MAX} are allowed"
            raise Refused(Reason.INVALID, remark)
        if max(mine, groups) > CONNECTION_GROUPS_MAX:
            remark = f"one connection is in {max(mine, groups)} groups; at most {CONNECTION_GROUPS_MAX} are allowed"
            raise Refused(Reason.INVALID, remark)
        if self._count + groups - mine > MEMBERSHIPS_MAX:
            remark = (
                f"the clients of this node are in {self._count} groups together; at most {MEMBERSHIPS_MAX} are allowed"
            )
            raise Refused(Reason.BUSY, remark)

    def _check_text(self, name: str, found: ConsumerGroup | None, subscriptions: list[Subscription]) -> None:
        for subscription in subscriptions:
            check_text(subscription.sub_string)
        held = found.text.held if found is not None and found.text is not None else 0
        size = _text_bytes(subscriptions)
        if size > held and not self._text.fits(size - held):
            remark = (
                f"group {name} subscribes with {size} bytes; with the {self._text.taken} of other groups this node "
                f"would keep more than {self._text.size}"
            )
            raise Refused(Reason.BUSY, remark)

    def _note(self, members: SortedMap[str, Member], member: Member, role: Role, group: str) -> bool:
        """Notes a heartbeat. Returns True if the client is new or came over another connection."""
        member.last_seen_ms = self._services.awake_ms()
        old = members.get(member.client_id)
        members.put(member.client_id, member)
        mine = self._groups_of.get(member.connection)
        if mine is None:
            mine = self._groups_of[member.connection] = _Memberships()
            member.connection.on_close.append(lambda: self._on_close(member.connection))
        self._count += mine.add(role, group, member.client_id)
        if old is not None and old.connection is not member.connection:
            self._leave(old, role, group)
        if not self._scanning:
            self._scanning = True
            self._services.call_later(SCAN_MS, self._scan)
        return old is None or old.connection is not member.connection

    def _on_close(self, connection: Client) -> None:
        mine = self._groups_of.pop(connection, None)
        if mine is not None:
            self._count -= mine.count
            self._services.turns.begin(self, self._end(connection, mine))

    def _end(self, connection: Client, mine: _Memberships) -> Generator[None]:
        for (role, group), client_ids in mine.ids.items():
            for client_id in client_ids:
                charge(ITEM_UNITS)
                member = self._members_of(role, group).get(client_id)
                if member is not None and member.connection is connection:  # else it came again over another one
                    self._drop(role, group, client_id)
                yield

    def _scan(self) -> None:
        self._services.turns.begin(self, self._expire(self._services.awake_ms() - EXPIRY_MS))

    def _expire(self, oldest_ms: int) -> Generator[None]:
        looked = 0
        for role, groups in ((Role.PRODUCER, self.producers), (Role.CONSUMER, self.consumers)):
            for group in groups:
                for client_id, member in self._members_of(role, group).items():
                    charge(ITEM_UNITS)
                    if member.last_seen_ms < oldest_ms:
                        self._drop(role, group, client_id)
                    looked += 1
                    if looked % LOOKS == 0:
                        yield
        self._scanning = bool(self.consumers or self.producers)
        if self._scanning:
            self._services.call_later(SCAN_MS, self._scan)

    def _drop(self, role: Role, group: str, client_id: str) -> None:
        """Forgets the client in that group, if it is there."""
        members = self._members_of(role, group)
        member = members.get(client_id)
        if member is None:
            return
        members.remove(client_id)
        self._leave(member, role, group)
        if role is Role.CONSUMER:
            self._consumer_left(group, client_id)
            return
        mine = self._producer_clients[client_id]
        mine.remove(group)
        if not mine:
            del self._producer_clients[client_id]
        if not members:
            self.producers.remove(group)

    def _consumer_left(self, name: str, client_id: str) -> None:
        group = self.consumers[name]
        group.version += 1
        group.ids_bytes -= len(client_id)
        if group.members:
            self._changed(name, group)
            return
        self.consumers.remove(name)
        if group.text is not None:
            group.text.hold(0)

    def _leave(self, member: Member, role: Role, group: str) -> None:
        mine = self._groups_of.get(member.connection)
        if mine is not None:
            self._count -= mine.remove(role, group, member.client_id)

    def _changed(self, name: str, group: ConsumerGroup) -> None:
        """Tells the members of a CLUSTERING group to divide the queues again."""
        if group.message_model == CLUSTERING:
            self._notices.changed(name, group)


class _Memberships:
    """The groups and clients that one connection's heartbeats named."""

    __slots__ = ("count", "ids")

    def __init__(self) -> None:
        self.ids: dict[tuple[Role, str], dict[str, None]] = {}
        """(role, group) -> client ids, in the order in which they came."""
        self.count = 0
        """The number of all clients in `ids`."""

    def add(self, role: Role, group: str, client_id: str) -> int:
        """Adds a client. Returns 1 if it is new, else 0."""
        ids = self.ids.setdefault((role, group), {})
        if client_id in ids:
            return 0
        ids[client_id] = None
        self.count += 1
        return 1

    def remove(self, role: Role, group: str, client_id: str) -> int:
        """Removes a client. Returns 1 if it was there, else 0."""
        ids = self.ids.get((role, group), {})
        if client_id not in ids:
            return 0
        del ids[client_id]
        if not ids:
            del self.ids[role, group]
        self.count -= 1
        return 1


_NOBODY: SortedMap[str, Member] = SortedMap()
"""An empty value that is never changed."""


def _check_ids(name: str, group: ConsumerGroup, client_id: str) -> None:
    """Raises Refused if the list of the group's members would become too long."""
    if group.ids_bytes + len(client_id) > IDS_BYTES_MAX:
        remark = (
            f"the client ids of group {name} have {group.ids_bytes} characters; at most {IDS_BYTES_MAX} are allowed"
        )
        raise Refused(Reason.BUSY, remark)


def _text_bytes(subscriptions: Iterable[Subscription]) -> int:
    """Returns the approximate bytes that the subscriptions take in memory."""
    return sum(4 * (len(one.topic) + len(one.sub_string) + len(one.expression_type)) + 200 for one in subscriptions)
