"""Keeps the list of the clients that produce and consume through this node. A client becomes a member by its
heartbeats. It is forgotten when it disconnects, after 120 s of silence, or when its user has lost the right by which it
registered.

The lists are local by design: consumers send heartbeats to every node of the group, so each node knows all of them, and
a new leader answers for the group at once. A producer is known only to the nodes to which it sends heartbeats. Time in
which this node itself stood still does not count as a client's silence.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from cluster.broker.filters.subscription import Subscription, check_text
from cluster.broker.groups.consumer_group import (
    CLUSTERING,
    WISHES_BYTES_MAX,
    ClientKey,
    ConsumerGroup,
    Member,
    text_bytes,
    wish_bytes,
)
from cluster.broker.groups.group_notices import GroupNotices
from cluster.broker.refusal import Reason, Refused
from cluster.broker.rights import SUB, Party, group_need
from cluster.broker.services import Client, Services
from cluster.runtime.resource_budget import Room
from raftlog.work import ITEM_UNITS, charge
from statemachine.access.users import NOBODY
from statemachine.commands import is_same
from statemachine.rows.sorted_map import SortedMap

if TYPE_CHECKING:
    from cluster.broker.groups.shared_ids import SharedIds
    from cluster.broker.rights import Rights

EXPIRY_MS = 120_000
SCAN_MS = 10_000
CLIENT_ID_MAX = 1024
CONNECTION_GROUPS_MAX, MEMBERSHIPS_MAX = 1_000, 100_000
"""The most groups in which the clients of one connection may be, and the most memberships (a client in a group) of all
connections together."""
FIRST_HEARTBEAT_MS = 35_000
"""Milliseconds after a client has connected, or after this node has started, in which the client's first heartbeat may
still be missing. Clients send one every 30 s, whenever they connected."""
TEXT_BYTES_MAX = 64 << 20
"""The most bytes of subscriptions that this node keeps for all groups together."""
IDS_BYTES_MAX = 8 << 20
"""The most bytes of the client ids of one group. There is a limit because every member asks for the whole list."""
TRIES_MAX = 64
"""The most members that are tried to find one with an open connection. Members with closed connections will soon be
forgotten."""
NAMED_MAX = 64
"""The most producers of one connection that can be found by their client ids alone. Beyond that the oldest cannot."""
LOOKS = 16
"""The number of members that one step of a scan checks."""


class Role(StrEnum):
    """The role of a client in a group. Values are on the wire between nodes."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class ProducerGroup:
    """The members of a producer group. If two users have the same client id, these are two members."""

    __slots__ = ("users",)

    def __init__(self) -> None:
        self.users: dict[int, SortedMap[str, Member]] = {}
        """User id -> client id -> member. Users without members are removed."""

    def values(self) -> Iterator[Member]:
        """Yields all members. Members may come and go during the iteration."""
        for members in list(self.users.values()):
            yield from members.values()

    def get(self, key: ClientKey) -> Member | None:
        """Returns the member of that user with that client id; None if there is none."""
        user, client_id = key
        members = self.users.get(user)
        return members.get(client_id) if members is not None else None

    def over(self, connection: Client, key: ClientKey) -> Member | None:
        """Returns the member of that user with that client id; None if there is none, or if it came over another
        connection."""
        member = self.get(key)
        return member if member is not None and member.connection is connection else None

    def put(self, member: Member) -> None:
        """Adds a member. It replaces a member of the same user with the same client id."""
        members = self.users.get(member.user)
        if members is None:
            members = self.users[member.user] = SortedMap()
        members.put(member.client_id, member)

    def remove(self, member: Member) -> bool:
        """Removes a member, which must be in the group. Returns True, because no other connection keeps the client in
        the group."""
        members = self.users[member.user]
        members.remove(member.client_id)
        if not members:
            del self.users[member.user]
        return True


class MemberBounds(NamedTuple):
    """The limits on what this node keeps about members. The constants that are their defaults explain them."""

    connection_groups: int = CONNECTION_GROUPS_MAX
    memberships: int = MEMBERSHIPS_MAX
    ids_bytes: int = IDS_BYTES_MAX
    text_bytes: int = TEXT_BYTES_MAX
    wishes_bytes: int = WISHES_BYTES_MAX


MEMBER_BOUNDS = MemberBounds()


class Members:
    """The consumer and producer groups of the clients of this node. While any group has members, a scan runs
    periodically and removes members that have been silent. Event loop only."""

    def __init__(
        self, services: Services, rights: Rights, shared: SharedIds, bounds: MemberBounds = MEMBER_BOUNDS
    ) -> None:
        """`shared` is told when two users have the same client id in one consumer group."""
        self._bounds = bounds
        self._services = services
        self._rights = rights
        self._shared = shared
        self._notices = GroupNotices(services)
        self.consumers: SortedMap[str, ConsumerGroup] = SortedMap()
        self.producers: SortedMap[str, ProducerGroup] = SortedMap()
        self._named: dict[str, dict[int, dict[Client, Member]]] = {}
        """Client id -> user -> open connections whose heartbeats named that producer, the newest last. This table finds
        the producer that waits for a reply, of which only the client id is known. A connection stays when a newer one
        names the same producer."""
        self._turn = 0
        """The number of members that `_next` has tried so far. The number selects the member to try next, so that each
        gets its turn."""
        self._groups_of: dict[Client, _Memberships] = {}
        """Connection -> the groups and clients that its heartbeats named. So the end of a connection costs nothing for
        other clients' groups."""
        self.count = 0
        """The number of memberships (a client in a group) of all connections."""
        self._text = Room(bounds.text_bytes, lambda callback: services.call_later(0, callback))
        """The memory that all groups' subscriptions may take."""
        self._scanning = False
        self._began_ms = services.awake_ms()

    def consumer_ids(self, group: str) -> list[str]:
        """Returns the client ids of a consumer group, sorted, so that every node returns the same order; [] if there is
        no such group."""
        found = self.consumers.get(group)
        return list(found.members) if found is not None else []

    def member_count(self, group: str) -> int:
        """Returns the number of a consumer group's members that this node knows."""
        found = self.consumers.get(group)
        return len(found.members) if found is not None else 0

    def unread(self, group: str) -> dict[str, list[str]]:
        """Returns topic -> clients of the group that get queues of the topic but do not read them, a few of each."""
        found = self.consumers.get(group)
        return found.unread() if found is not None else {}

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Returns the group's subscription to the topic, from its members' heartbeats to this node; None if there is
        none."""
        found = self.consumers.get(group)
        return found.subscriptions.get(topic) if found is not None else None

    def clients_of(self, connection: Client, group: str, user: int = NOBODY) -> frozenset[str]:
        """Returns the ids of the group's consumers that this connection's heartbeats named, if the heartbeat was signed
        by `user` or by nobody. If `user` is NOBODY, all of them are returned."""
        mine = self._groups_of.get(connection)
        keys = mine.ids.get((Role.CONSUMER, group), ()) if mine is not None else ()
        return frozenset(client_id for owner, client_id in keys if is_same(owner, user))

    def has(self, connection: Client) -> bool:
        """Returns True if this connection's heartbeats named any member that is still known."""
        mine = self._groups_of.get(connection)
        return mine is not None and bool(mine.ids)

    def is_consumer(self, group: str, client_id: str, user: int = NOBODY) -> bool:
        """Returns True if this client of the user is a member of the consumer group. Also returns True in the first
        FIRST_HEARTBEAT_MS after this node has started, because its heartbeat may still be missing."""
        found = self.consumers.get(group)
        member = found.members.get(client_id) if found is not None else None
        if member is not None and is_same(member.user, user):
            return True
        return self._services.awake_ms() - self._began_ms < FIRST_HEARTBEAT_MS

    def of(self, connection: Client) -> list[tuple[Role, str, Member]]:
        """Returns (role, group, member) for each group that this connection's heartbeats named."""
        found = []
        mine = self._groups_of.get(connection)
        for (role, group), keys in mine.ids.items() if mine is not None else ():
            found += [
                (role, group, member)
                for key in keys
                if (member := self._over(connection, role, group, key)) is not None
            ]
        return found

    def find(
        self, role: Role, group: str | None, client_id: str | None, may: Callable[[Member], bool] = lambda _: True
    ) -> Member | None:
        """Returns a connected member for which `may` returns True; None if there is none. `client_id`: the member's
        client id; if None, each member of the group is returned in turn. `group`: None searches the producers of all
        groups, for which `client_id` must be given. If several connections have the client id, the one with the newest
        heartbeat is chosen. A member whose user has lost the right to the group is not found."""

        def may_get(member: Member) -> bool:
            return may(member) and self._stands(role, group, member)

        if group is None:
            return self._find_named(client_id or "", may_get) if role is Role.PRODUCER else None
        if role is Role.PRODUCER:
            producers = self.producers.get(group)
            users = list(producers.users.values()) if producers is not None else []
        else:
            consumers = self.consumers.get(group)
            users = [consumers.members] if consumers is not None else []
        if client_id is not None:
            named = [members[client_id] for members in users if client_id in members]
            return max((one for one in named if _is_there(one, may_get)), key=_last_seen, default=None)
        return self._next(users, may_get)

    def _next(self, users: list[SortedMap[str, Member]], may: Callable[[Member], bool]) -> Member | None:
        """Returns the next member that may be asked; None if none is found in TRIES_MAX tries. Users take turns, so
        that a user with many members that may not be asked does not hide those of others."""
        for _ in range(min(sum(map(len, users)), TRIES_MAX)):
            self._turn += 1
            members = users[self._turn % len(users)]
            member = members.get(members.key_at(self._turn // len(users) % len(members)))
            if member is not None and _is_there(member, may):
                return member
        return None

    def _find_named(self, client_id: str, may: Callable[[Member], bool]) -> Member | None:
        found = []
        for connections in self._named.get(client_id, {}).values():
            tries = islice(reversed(connections.values()), TRIES_MAX)
            found += [next((member for member in tries if _is_there(member, may)), None)]
        return max((member for member in found if member is not None), key=_last_seen, default=None)

    def producer_users(self, client_id: str) -> dict[int, int]:
        """Returns user -> milliseconds, for each user of whom a producer with this client id is connected. The
        milliseconds are those since the first of the user's open connections named that client id."""
        now_ms = self._services.awake_ms()
        users = self._named.get(client_id, {})
        return {user: now_ms - min(each.named_ms for each in users[user].values()) for user in users}

    def _group(self, role: Role, group: str) -> ProducerGroup | ConsumerGroup | None:
        return self.producers.get(group) if role is Role.PRODUCER else self.consumers.get(group)

    def _over(self, connection: Client, role: Role, group: str, key: ClientKey) -> Member | None:
        """Returns the member of the group with that user and client id, as this connection's heartbeats named it; None
        if they did not."""
        found = self._group(role, group)
        return found.over(connection, key) if found is not None else None

    def add_producer(self, group: str, member: Member) -> None:
        """Adds a producer to the group, or records a new heartbeat of it."""
        members = self.producers.get(group)
        if members is None:
            members = ProducerGroup()
            self.producers.put(group, members)
        self._note(members, member, members.get((member.user, member.client_id)), Role.PRODUCER, group)
        self._name(member)

    def _name(self, member: Member) -> None:
        """Makes the producer findable by its client id alone."""
        connections = self._named.setdefault(member.client_id, {}).setdefault(member.user, {})
        known = connections.pop(member.connection, None)
        member.named_ms = known.named_ms if known is not None else member.last_seen_ms
        connections[member.connection] = member
        names = self._groups_of[member.connection].names
        key = member.user, member.client_id
        names.pop(key, None)
        names[key] = None
        if len(names) > NAMED_MAX:
            self._unname(member.connection, next(iter(names)))

    def _unname(self, connection: Client, key: ClientKey) -> None:
        mine = self._groups_of.get(connection)
        if mine is not None:
            mine.names.pop(key, None)
        user, client_id = key
        users = self._named.get(client_id, {})
        connections = users.get(user, {})
        if connections.pop(connection, None) is None or connections:
            return
        del users[user]
        if not users:
            del self._named[client_id]

    def add_consumer(
        self, group: str, member: Member, subscriptions: list[Subscription] | None, message_model: str
    ) -> bool:
        """Adds a consumer to the group, or records a new heartbeat of it. `subscriptions`: None if the heartbeat
        carries none; the group's then stay as they are. Returns True if the group's subscriptions changed.

        The group's members are notified (request 40) of a new member, a new connection and changed subscriptions.
        Raises Refused: NO_PERMISSION if another user's client in the group has the same client id, BAD_SUBSCRIPTION if
        a subscription is too long, BUSY if the limit on client ids or on subscriptions is reached.
        """
        found = self.consumers.get(group)
        if found is not None and self._clashes(group, found.members.get(member.client_id), member):
            remark = (
                f"group {group}: client id {member.client_id} is that of another user's client. Give each client its "
                "own id (instanceName, client_id), or let the clients of one group sign as one user"
            )
            raise Refused(Reason.NO_PERMISSION, remark)
        old = found.members.get(member.client_id) if found is not None else None
        if subscriptions is None:
            member.topics = old.topics if old is not None else None
        else:
            charge(ITEM_UNITS * len(subscriptions))
            member.topics = frozenset(one.topic for one in subscriptions)
            self._check_text(group, found, subscriptions, member.topics)
        if found is None:
            stands = partial(self._stands, Role.CONSUMER, group)
            found = ConsumerGroup(stands, self._services.awake_ms(), self._bounds.wishes_bytes)
            self.consumers.put(group, found)
        elif old is None:
            _check_ids(group, found, member.client_id, self._bounds.ids_bytes)
        found.message_model = message_model
        there = found.take_beside(member.client_id, member.connection)
        if there is not None and old is not None and there.user == member.user:
            self._shared.twice(group, member.client_id, member.user)
            member.since_ms = there.since_ms
        before = found.version
        joined = self._note(found, member, old, Role.CONSUMER, group) and there is None
        narrowed = found.version != before and found.narrow()
        changed = (subscriptions is not None and found.subscribe(subscriptions)) or narrowed
        if changed or found.version != before:
            found.hold_text(self._text.share)
        if joined or changed or found.version != before:
            self._changed(group, found)
        return changed

    def _clashes(self, group: str, there: Member | None, member: Member) -> bool:
        """Returns True if the member `there`, which has the same client id, belongs to another user and keeps the
        client id, so that `member` must be refused. A member of no proven user gives way to a proven user. A member
        gives way to any user if its connection has closed or is the same as that of `member`, or if it has been silent
        too long."""
        if there is None or there.user in (NOBODY, member.user):
            return False
        if there.connection.closed or there.connection is member.connection:
            return False
        if there.last_seen_ms < self._services.awake_ms() - EXPIRY_MS:
            return False
        party = Party(member.user, member.connection.peer_address[0])
        why = f"client id {member.client_id} of group {group} is that of another user's client"
        if not self._rights.denies(party, why, "HEART_BEAT"):
            return False
        self._shared.refused(group, member.client_id, there.user, member.user)
        return True

    def remove(
        self,
        connection: Client,
        client_id: str,
        consumer_group: str | None,
        producer_group: str | None,
        user: int = NOBODY,
    ) -> None:
        """Removes a client of the user, which unregisters (request 35), from the named groups. `consumer_group`,
        `producer_group`: None for no group of that kind. The client stays in a group if another connection named it
        later."""
        mine = self._groups_of.get(connection)
        for role, group in ((Role.PRODUCER, producer_group), (Role.CONSUMER, consumer_group)):
            for owner, named in list(mine.ids.get((role, group), ())) if mine is not None and group else ():
                if named == client_id and is_same(owner, user):
                    self._drop_of(connection, role, group or "", (owner, named))

    def _drop_of(self, connection: Client, role: Role, group: str, key: ClientKey) -> None:
        """Ends the membership in the group that this connection's heartbeats gave the client. The client stays in the
        group if another connection has named it since."""
        member = self._over(connection, role, group, key)
        if member is not None:
            self._drop(role, group, member)

    def check(self, connection: Client, client_id: str, groups: int) -> None:
        """Raises Refused if the client id is too long, or if the connection's clients would be in too many groups.
        `groups`: the number of groups that the heartbeat names. Groups in which they already are do not count twice."""
        known = self._groups_of.get(connection)
        mine = known.count if known is not None else 0
        if len(client_id) > CLIENT_ID_MAX:
            remark = f"a clientID of {len(client_id)} characters is too long; at most {CLIENT_ID_MAX} are allowed"
            raise Refused(Reason.INVALID, remark)
        if max(mine, groups) > self._bounds.connection_groups:
            most = self._bounds.connection_groups
            remark = f"one connection is in {max(mine, groups)} groups; at most {most} are allowed"
            raise Refused(Reason.INVALID, remark)
        if self.count + groups - mine > self._bounds.memberships:
            most = self._bounds.memberships
            remark = f"the clients of this node are in {self.count} groups together; at most {most} are allowed"
            raise Refused(Reason.BUSY, remark)

    def _check_text(
        self, name: str, found: ConsumerGroup | None, subscriptions: list[Subscription], topics_wanted: frozenset[str]
    ) -> None:
        for subscription in subscriptions:
            check_text(subscription.sub_string)
        held = found.text.held if found is not None and found.text is not None else 0
        size = text_bytes(subscriptions) + wish_bytes(topics_wanted)
        if found is not None and topics_wanted not in found.wishes:
            size += held  # the other members' subscriptions and wishes are kept as well
        if size > held and not self._text.fits(size - held):
            remark = (
                f"group {name} subscribes with {size} bytes; with the {self._text.taken} of other groups this node "
                f"would keep more than {self._text.size}"
            )
            raise Refused(Reason.BUSY, remark)

    def _note(
        self,
        members: ProducerGroup | ConsumerGroup,
        member: Member,
        old: Member | None,
        role: Role,
        group: str,
    ) -> bool:
        """Records a heartbeat: `member` replaces `old`, which is None for a new client. Returns True if the client is
        new or came over another connection."""
        member.last_seen_ms = self._services.awake_ms()
        if old is not None and old.connection is member.connection:
            member.since_ms = old.since_ms
        member.since_ms = member.since_ms or member.last_seen_ms
        members.put(member)
        mine = self._groups_of.get(member.connection)
        if mine is None:
            mine = self._groups_of[member.connection] = _Memberships()
            member.connection.on_close.append(lambda: self._on_close(member.connection))
        self.count += mine.add(role, group, (member.user, member.client_id))
        if old is not None and (old.connection, old.user) != (member.connection, member.user):
            self._replaced(members, old, member, role, group)
        if not self._scanning:
            self._scanning = True
            self._services.call_later(SCAN_MS, self._scan)
        return old is None or old.connection is not member.connection

    def _replaced(
        self, members: ProducerGroup | ConsumerGroup, old: Member, member: Member, role: Role, group: str
    ) -> None:
        """Handles that `old` was replaced by `member`, which came over another connection or is of another user. A
        consumer of the same user is kept beside the new one while its connection is open. A consumer of another user is
        forgotten on all its connections."""
        gone = [old]
        if isinstance(members, ConsumerGroup):
            if old.user == member.user and not old.connection.closed:
                members.keep_beside(old)
                return
            if old.user != member.user:
                gone += members.beside.pop(member.client_id, {}).values()
        for each in gone:
            self._leave(each, role, group)

    def _on_close(self, connection: Client) -> None:
        mine = self._groups_of.get(connection)
        if mine is not None:
            for key in list(mine.names):
                self._unname(connection, key)
            del self._groups_of[connection]
            self.count -= mine.count
            self._services.turns.begin(self, self._end(connection, mine))

    def _end(self, connection: Client, mine: _Memberships) -> Generator[None]:
        for (role, group), keys in mine.ids.items():
            for key in keys:
                charge(ITEM_UNITS)
                self._drop_of(connection, role, group, key)
                yield

    # --- members whose user loses the right --------------------------------------------------------------------------

    def rules_changed(self) -> None:
        """Checks the rights of all members again, in steps, and removes those that have lost them. Called when users or
        rules have changed."""
        if self._rights.enforces:
            self._services.turns.begin_later(self, self._judge_all())

    def _judge_all(self) -> Generator[None]:
        for name in self.producers:
            found = self.producers.get(name)
            for at, member in enumerate(found.values() if found is not None else ()):
                if at % LOOKS == 0:
                    yield
                if not self._stands(Role.PRODUCER, name, member):
                    self._drop(Role.PRODUCER, name, member)
            yield
        for name in self.consumers:
            consumers = self.consumers.get(name)
            if consumers is not None:
                yield from self.judged(name, consumers)

    def judged(self, name: str, group: ConsumerGroup) -> Generator[None]:
        """Checks the rights of a consumer group's members in steps, and removes those that have lost them. Does nothing
        if rights are not enforced, or if they were already checked by the present version of users and rules."""
        version = self._services.state.access.version
        if not self._rights.enforces or group.judged == version:
            return
        for at, member in enumerate(group.values()):
            if at % LOOKS == 0:
                yield
            if not self._stands(Role.CONSUMER, name, member):
                self._drop(Role.CONSUMER, name, member)
        group.was_judged(version)
        yield

    def _stands(self, role: Role, group: str | None, member: Member) -> bool:
        """Returns True if the member's user has the right to be in the group: a consumer needs Sub on the group, a
        producer needs no right. Without a proven user no member has the right once rights are enforced."""
        version = self._services.state.access.version
        if not self._rights.enforces or member.judged == version:
            return True
        charge(ITEM_UNITS)
        needs = [group_need(group or "", SUB)] if role is Role.CONSUMER else []
        allowed = self._rights.is_allowed(Party(member.user, member.connection.peer_address[0]), needs)
        if allowed:
            member.judged = version
        return allowed

    def _scan(self) -> None:
        self._services.turns.begin(self, self._expire(self._services.awake_ms() - EXPIRY_MS))

    def _expire(self, oldest_ms: int) -> Generator[None]:
        looked = 0
        for role, groups in ((Role.PRODUCER, self.producers), (Role.CONSUMER, self.consumers)):
            for group in groups:
                found = self._group(role, group)
                for member in found.values() if found is not None else ():
                    charge(ITEM_UNITS)
                    if member.last_seen_ms < oldest_ms:
                        self._drop(role, group, member)
                    looked += 1
                    if looked % LOOKS == 0:
                        yield
        self._scanning = bool(self.consumers or self.producers)
        if self._scanning:
            self._services.call_later(SCAN_MS, self._scan)

    def _drop(self, role: Role, group: str, member: Member) -> None:
        """Removes a member from a group. Does nothing if the group has replaced this member by another one."""
        found = self._group(role, group)
        if found is None or found.over(member.connection, (member.user, member.client_id)) is not member:
            return
        gone = found.remove(member)
        self._leave(member, role, group)
        if isinstance(found, ConsumerGroup):
            if gone:
                for each in found.beside.pop(member.client_id, {}).values():
                    self._leave(each, role, group)
                self._consumer_left(group, found)
            return
        self._producer_left(member)
        if isinstance(found, ProducerGroup) and not found.users:
            self.producers.remove(group)

    def _producer_left(self, member: Member) -> None:
        """Makes the producer no longer findable by its client id alone, unless its connection is in another producer
        group with the same client id."""
        key = member.user, member.client_id
        mine = self._groups_of.get(member.connection)
        if mine is None or not any(key in keys for (role, _), keys in mine.ids.items() if role is Role.PRODUCER):
            self._unname(member.connection, key)

    def _consumer_left(self, name: str, group: ConsumerGroup) -> None:
        if group.members:
            group.narrow()
            group.hold_text(self._text.share)
            self._changed(name, group)
            return
        self.consumers.remove(name)
        if group.text is not None:
            group.text.hold(0)

    def _leave(self, member: Member, role: Role, group: str) -> None:
        mine = self._groups_of.get(member.connection)
        if mine is not None:
            self.count -= mine.remove(role, group, (member.user, member.client_id))

    def _changed(self, name: str, group: ConsumerGroup) -> None:
        """Tells the members of a CLUSTERING group to divide the queues again, unless the group's setting says that they
        are not notified."""
        config = self._services.state.groups.get(name)
        if group.message_model == CLUSTERING and (config is None or config.notify_consumer_ids_changed_enable):
            self._notices.changed(name, group)


class _Memberships:
    """The groups and clients that one connection's heartbeats named."""

    __slots__ = ("count", "ids", "names")

    def __init__(self) -> None:
        self.ids: dict[tuple[Role, str], dict[ClientKey, None]] = {}
        """(role, group) -> the clients that heartbeats named for it, oldest first."""
        self.names: dict[ClientKey, None] = {}
        """The producers with which this connection can be found by their client ids alone, oldest first."""
        self.count = 0
        """The number of all clients in `ids`; a client counts once for each group."""

    def add(self, role: Role, group: str, key: ClientKey) -> int:
        """Adds a client to a group. Returns 1 if it is new there, else 0."""
        ids = self.ids.setdefault((role, group), {})
        if key in ids:
            return 0
        ids[key] = None
        self.count += 1
        return 1

    def remove(self, role: Role, group: str, key: ClientKey) -> int:
        """Removes a client from a group. Returns 1 if it was there, else 0."""
        ids = self.ids.get((role, group), {})
        if key not in ids:
            return 0
        del ids[key]
        if not ids:
            del self.ids[role, group]
        self.count -= 1
        return 1


def _is_there(member: Member, may: Callable[[Member], bool]) -> bool:
    return not member.connection.closed and may(member)


_last_seen = attrgetter("last_seen_ms")


def _check_ids(name: str, group: ConsumerGroup, client_id: str, most: int) -> None:
    """Raises Refused (BUSY) if the client ids of the group would have more than `most` characters together."""
    if group.ids_bytes + len(client_id) > most:
        remark = f"the client ids of group {name} have {group.ids_bytes} characters; at most {most} are allowed"
        raise Refused(Reason.BUSY, remark)
