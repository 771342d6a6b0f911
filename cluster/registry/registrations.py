"""Serves the links of a registry process with the nodes of all groups: merges the records that nodes send, and sends
the nodes its own records.

Nodes dial (channel `group`, `cluster.peer.group_links`), and both sides prove the cluster's secret. Nobody else can
register. A node registers its group with a frame GROUPS that has the group's record. The node must be a member
according to the newest record of its group. Frames are merged by the rule of all maps: a record of an older epoch
changes nothing.

A process that has just started knows nothing of groups that have not registered yet. The process becomes *ready* when
every group that nodes have named since the start has registered, or after READY_S.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cluster.config.local_layout import REGISTRY_GROUP, node_object
from cluster.peer.allowed_peers import HostAndPort, Membership
from cluster.peer.group_links import QUIET_LOOKS, GroupLink, GroupLinks
from cluster.peer.keyring import Keyring
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import FrameHandlers, PeerLevels
from cluster.placement.group_map import GroupRecord, decode, encode, news
from cluster.placement.registry_state import RegistryState, encode_state
from cluster.registry.records import (
    RECORDS_PER_OPERATION,
    Records,
    TopicPlace,
    groups_operation,
    read_places,
    topics_operation,
)
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import Kind
from raftlog.types import FIRST_GROUP, NOBODY, NodeId
from statemachine.levels import LEVEL

logger = logging.getLogger(__name__)

READY_S = 45.0
"""Seconds after the start at which a process becomes ready, even if groups have not registered."""
LOOK_S = 1.0
"""Seconds between two frames on each link. A frame has the new records; an empty one shows that the process lives."""
INCARNATION_BYTES = 8
WHOLE_EVERY = 10
"""All records, instead of only new ones, are sent every WHOLE_EVERY frames."""


class RegistryIdentity(NamedTuple):
    """The identity and address with which nodes know a process of the registry."""

    cluster: uuid.UUID
    number: int
    bind: HostAndPort
    """The address at which nodes dial it."""


class Registrations:
    """The links of one registry process with nodes. Event loop only."""

    def __init__(
        self,
        identity: RegistryIdentity,
        keyring: Keyring,
        records: Records,
        entropy: Callable[[int], bytes],
        on_news: Callable[[Iterable[GroupRecord]], None],
        on_places: Callable[[Mapping[str, TopicPlace]], None],
        state: Callable[[], RegistryState],
        *,
        look_s: float = LOOK_S,
        quiet_looks: int = QUIET_LOOKS,
        ready_s: float = READY_S,
    ) -> None:
        """`keyring` must demand a proof. `entropy(n)` returns n random bytes. `on_news` and `on_places` are called with
        the groups' records and topics' places that were new. `state` returns the state of this process, which is sent
        to nodes."""
        cluster, number, bind = identity
        own = uuid.uuid5(cluster, f"registry {number}")
        membership = Membership(str(cluster), REGISTRY_GROUP, NodeId(number), str(own), {})
        incarnation = int.from_bytes(entropy(INCARNATION_BYTES))
        self.transport = PeerTransport(
            membership,
            {},
            bind,
            incarnation,
            keyring=keyring,
            entropy=entropy,
            levels=PeerLevels(of_cluster=lambda: LEVEL),
        )
        self.links = GroupLinks(self.transport, lambda _: NOBODY, quiet_looks=quiet_looks)
        self.links.takes(Kind.GROUPS, self._on_groups)
        self.links.takes(Kind.PLACES, self._on_places)
        self.links.opened.add(lambda link: link.send(Kind.GROUPS, [], encode(self._records.view.groups.values())))
        self.ready = asyncio.Event()
        """Set when this process knows enough to answer clients."""
        self._late: frozenset[int] = frozenset()
        """Groups that had not registered when READY_S was over."""
        self._cluster = cluster.bytes
        self._records = records
        self._on_news = on_news
        self._on_new_places = on_places
        self._state = state
        self._look_s, self._ready_s = look_s, ready_s
        self._named: set[int] = set()
        """Groups that nodes have named since the start."""
        self._registered: set[int] = set()
        """Groups of which a member has registered since the start."""
        self._fresh: dict[int, GroupRecord] = {}
        """Group -> its new record, which is sent to all nodes with the next frame."""
        self._task: asyncio.Task[None] | None = None
        self._told = Seldom(logger)

    async def start(self) -> None:
        """Listens for nodes. Raises OSError if the address cannot be bound."""
        await self.transport.start(FrameHandlers(lambda _: None, lambda _: None, lambda *_: None))
        self._task = asyncio.create_task(self._run(), name="registrations")

    async def close(self) -> None:
        """Closes all links."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.links.close()
        await self.transport.close()

    @property
    def missing(self) -> tuple[int, ...]:
        """The groups that had not registered after READY_S and have not registered since, ascending."""
        return tuple(sorted(self._late - self._registered))

    def reached(self) -> list[tuple[int, NodeId]]:
        """Returns (group, node) of each node that has a connection to this process."""
        return [(link.group, link.node) for link in self.links.all()]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        end_s, looks = loop.time() + self._ready_s, 0
        while True:
            await asyncio.sleep(self._look_s)
            looks += 1
            self.links.tend([])
            fresh, self._fresh = self._fresh, {}
            payload = encode((fresh if looks % WHOLE_EVERY else self._records.view.groups).values())
            state = encode_state(self._state())
            for link in self.links.all():
                link.send(Kind.GROUPS, [], payload)
                link.send(Kind.REGISTRY_STATE, state)
            if loop.time() >= end_s and not self.ready.is_set():
                self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        self._late = frozenset(self._named - self._registered)
        which = ", ".join(map(str, self.missing)) or "nobody has registered, so all of them"
        logger.warning("no node of these groups has registered in %.0f s: %s; routes lack them", self._ready_s, which)
        self.ready.set()

    def _on_groups(self, link: GroupLink, header: list[object], payload: bytes) -> None:
        """Merges the records of groups in a frame GROUPS. Ignores them if the sender is no member of its group. Raises
        WireError if the frame is malformed."""
        heard = decode(payload)
        known = self._records.view.groups
        fresh = news(known, heard)
        if not self._is_member(link, fresh.get(link.group) or known.get(link.group)):
            return
        for some in _in_parts(list(fresh.values())):
            self._records.apply(groups_operation(self._cluster, some))
        if fresh:
            self._fresh.update(fresh)
            self._on_news(fresh.values())
        if any(record.group == link.group for record in heard) and link.group not in self._registered:
            self._registered.add(link.group)
            logger.info("group %d has registered", link.group)
        self._named.update(record.group for record in heard)
        if self._named <= self._registered and self._named:
            self.ready.set()

    def _is_member(self, link: GroupLink, own: GroupRecord | None) -> bool:
        """Returns True if the node at the other end of `link` is a member of its group according to `own`, the group's
        newest record. `own` is None if there is no record."""
        if own is not None and any(member.node == link.node for member in own.members):
            return True
        which = node_object(link.group, link.node)
        self._told.warn(f"{which} registers nothing", "it is no voter of its group, as far as groups tell")
        return False

    def _on_places(self, link: GroupLink, header: list[object], payload: bytes) -> None:
        """Merges the places of topics in a frame PLACES, which only nodes of the first group send. Raises WireError if
        the frame is malformed."""
        heard = read_places(payload)
        if link.group != FIRST_GROUP or not self._is_member(link, self._records.view.groups.get(link.group)):
            return
        known = self._records.view.topics
        fresh = {name: place for name, place in heard.items() if name not in known or place > known[name]}
        if not fresh:
            return
        self._records.apply(topics_operation(self._cluster, fresh))
        kept = self._records.view.topics
        if held := {name: place for name, place in fresh.items() if name in kept}:
            self._on_new_places(held)
        if len(held) < len(fresh):
            self._told.warn("topics are left out", f"{len(kept)} are known, with deleted ones, and no more fit")


def _in_parts(records: list[GroupRecord]) -> list[list[GroupRecord]]:
    return [records[at : at + RECORDS_PER_OPERATION] for at in range(0, len(records), RECORDS_PER_OPERATION)]
