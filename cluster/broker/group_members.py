"""Who produces and consumes through this node: told by heartbeats, forgotten on disconnect or after 120 s of silence.

Local by design: consumers send heartbeats to every node of the group, so each node knows all of them, and a new leader
answers for the group at once. Producers are known to the node they called. The time in which this node stood still is
no silence of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from cluster.broker.refusal import Reason, Refused
from cluster.broker.services import Client, Services
from cluster.broker.subscription import Subscription, check_text
from cluster.runtime.room import Room, Share

EXPIRY_MS = 120_000
SCAN_MS = 10_000
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
PUSH = "CONSUME_PASSIVELY"
"""What push consumers say of themselves."""
CLIENT_ID_MAX = 1024
CONNECTION_GROUPS_MAX, MEMBERSHIPS_MAX = 1_000, 100_000
"""In so many groups may the clients of one connection be, and those of all connections together."""
TEXT_BYTES_MAX = 64 << 20
"""All groups' subscriptions, as this node keeps them."""


class Role(StrEnum):
    """What a client is in a group. Values are on the wire between nodes."""

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
        """Of the last heartbeat that carried subscriptions; 0 if the client does not send one."""


class ConsumerGroup:
    """The members of a consumer group and what the group as a whole subscribes to."""

    __slots__ = (
        "consume_from_where",
        "consume_type",
        "members",
        "message_model",
        "subscribed",
        "subscriptions",
        "text",
    )

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.subscribed = False
        """Whether any member has told `subscriptions`; after a restart the first heartbeats may come without."""
        self.text: Share | None = None
        """What its subscriptions hold of the node."""
        self.message_model = CLUSTERING
        self.consume_type = PUSH
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Takes one member's list as the group's: newer versions replace, topics not listed go. True if it changed."""
        merged: dict[str, Subscription] = {}
        for new in subscriptions:
            old = self.subscriptions.get(new.topic)
            merged[new.topic] = new if old is None or new.version > old.version else old
        changed = merged != self.subscriptions
        self.subscriptions = merged
        self.subscribed = True
        return changed


class Members:
    """All groups of this node. One periodic scan while there is anybody to expire, none otherwise."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Member]] = {}
        self._producer_clients: dict[str, dict[str, Member]] = {}
        """Client id -> producer group -> member: members known by their client id alone."""
        self._turn = 0
        """Counts choices among several members."""
        self._groups_of: dict[Client, dict[tuple[Role, str, str], None]] = {}
        """Client -> (role, group, client id), so that its end touches nobody else's groups."""
        self._count = 0
        """Of all of these."""
        self._text = Room(TEXT_BYTES_MAX, lambda callback: services.call_later(0, callback))
        """What groups subscribe to."""
        self._scanning = False

    def consumer_ids(self, group: str) -> list[str]:
        """Client ids of a consumer group, sorted; every node gives the same list."""
        found = self.consumers.get(group)
        return sorted(found.members) if found is not None else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the group's members on this node said of the topic."""
        found = self.consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def clients_of(self, connection: Client, group: str) -> frozenset[str]:
        """Ids of the group's consumers that this connection's heartbeats named."""
        mine = self._groups_of.get(connection, ())
        return frozenset(client_id for kind, name, client_id in mine if kind == Role.CONSUMER and name == group)

    def of(self, connection: Client) -> list[tuple[Role, str, Member]]:
        """(role, group, member) for each group that this connection's heartbeats named."""
        found = []
        for role, group, client_id in self._groups_of.get(connection, ()):
            consumers = self.consumers.get(group)
            members = self.producers.get(group, {}) if role is Role.PRODUCER else consumers.members if consumers else {}
            if (member := members.get(client_id)) is not None:
                found.append((role, group, member))
        return found

    def find(self, role: Role, group: str | None, client_id: str | None) -> Member | None:
        """A connected member: that client, or with None each of the group in turn. `group` None: any, which is known of
        producers with a client id only."""
        if group is None:
            candidates = self._producer_clients.get(client_id or "", {}) if role is Role.PRODUCER else {}
        elif role is Role.PRODUCER:
            candidates = self.producers.get(group, {})
        else:
            found = self.consumers.get(group)
            candidates = found.members if found is not None else {}
        wanted = None if group is None else client_id
        able = [one for one in candidates.values() if not one.connection.closed and wanted in (None, one.client_id)]
        self._turn += 1
        return able[self._turn % len(able)] if able else None

    def add_producer(self, group: str, member: Member) -> None:
        """Adds or refreshes a producer."""
        members = self.producers.get(group, {})
        self._note(members, member, (Role.PRODUCER, group, member.client_id))
        self.producers[group] = members
        self._producer_clients.setdefault(member.client_id, {})[group] = member

    def add_consumer(
        self, group: str, member: Member, subscriptions: list[Subscription] | None, message_model: str
    ) -> bool:
        """Adds or refreshes a consumer; None keeps the group's subscriptions. True if the group's list changed.

        Members of the group are notified (40) of a new member, a new connection and a changed list.
        """
        found = self.consumers.get(group)
        if subscriptions is not None:
            self._check_text(group, found, subscriptions)
        if found is None:
            found = self.consumers[group] = ConsumerGroup()
        found.message_model = message_model
        joined = self._note(found.members, member, (Role.CONSUMER, group, member.client_id))
        changed = subscriptions is not None and found.subscribe(subscriptions)
        if changed:
            if found.text is None:
                found.text = self._text.share()
            found.text.hold(_text_bytes(found.subscriptions.values()))
        if joined or changed:
            self._notify(group, found)
        return changed

    def remove(self, client_id: str, consumer_group: str | None, producer_group: str | None) -> None:
        """A client says goodbye to a group (35)."""
        if producer_group:
            self._drop_producers(producer_group, {client_id})
        if consumer_group:
            self._drop_consumers(consumer_group, {client_id})

    def check(self, connection: Client, client_id: str, groups: int) -> None:
        """Raises Refused if a client may not be in so many groups more; all that have room may say so again."""
        mine = len(self._groups_of.get(connection, ()))
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

    def _note(self, members: dict[str, Member], member: Member, key: tuple[Role, str, str]) -> bool:
        """True if the client is new or came over another connection."""
        member.last_seen_ms = self._services.awake_ms()
        old = members.get(member.client_id)
        members[member.client_id] = member
        groups = self._groups_of.get(member.connection)
        if groups is None:
            groups = self._groups_of[member.connection] = {}
            member.connection.on_close.append(lambda: self._on_close(member.connection))
        if key not in groups:
            groups[key] = None
            self._count += 1
        if old is not None and old.connection is not member.connection:
            self._leave(old, key)
        if not self._scanning:
            self._scanning = True
            self._services.call_later(SCAN_MS, self._scan)
        return old is None or old.connection is not member.connection

    def _on_close(self, connection: Client) -> None:
        mine = self._groups_of.pop(connection, {})
        self._count -= len(mine)
        for kind, name in dict.fromkeys((kind, name) for kind, name, _ in mine):
            self._drop_if(kind, name, lambda member: member.connection is connection)

    def _scan(self) -> None:
        oldest = self._services.awake_ms() - EXPIRY_MS
        for kind, groups in ((Role.PRODUCER, self.producers), (Role.CONSUMER, self.consumers)):
            for name in list(groups):
                self._drop_if(kind, name, lambda member: member.last_seen_ms < oldest)
        self._scanning = bool(self.consumers or self.producers)
        if self._scanning:
            self._services.call_later(SCAN_MS, self._scan)

    def _drop_if(self, kind: Role, name: str, gone: Callable[[Member], bool]) -> None:
        if kind == Role.PRODUCER:
            members = self.producers.get(name, {})
            self._drop_producers(name, {m.client_id for m in members.values() if gone(m)})
        elif name in self.consumers:
            members = self.consumers[name].members
            self._drop_consumers(name, {m.client_id for m in members.values() if gone(m)})

    def _drop_producers(self, name: str, client_ids: set[str]) -> None:
        members = self.producers.get(name, {})
        for client_id in client_ids:
            if (member := members.pop(client_id, None)) is not None:
                self._leave(member, (Role.PRODUCER, name, client_id))
                mine = self._producer_clients[client_id]
                del mine[name]
                if not mine:
                    del self._producer_clients[client_id]
        if not members:
            self.producers.pop(name, None)

    def _drop_consumers(self, name: str, client_ids: set[str]) -> None:
        group = self.consumers.get(name)
        if group is None:
            return
        before = len(group.members)
        for client_id in client_ids:
            if (member := group.members.pop(client_id, None)) is not None:
                self._leave(member, (Role.CONSUMER, name, client_id))
        if not group.members:
            del self.consumers[name]
            if group.text is not None:
                group.text.hold(0)
        elif len(group.members) != before:
            self._notify(name, group)

    def _leave(self, member: Member, key: tuple[Role, str, str]) -> None:
        groups = self._groups_of.get(member.connection)
        if groups is not None and key in groups:
            del groups[key]
            self._count -= 1

    def _notify(self, name: str, group: ConsumerGroup) -> None:
        """Asks the members of a CLUSTERING group to divide the queues again."""
        if group.message_model != CLUSTERING:
            return
        for connection in dict.fromkeys(member.connection for member in group.members.values()):
            connection.consumers_changed(name)


def _text_bytes(subscriptions: Iterable[Subscription]) -> int:
    """What they take in memory, about."""
    return sum(4 * (len(one.topic) + len(one.sub_string) + len(one.expression_type)) + 200 for one in subscriptions)
