"""Exchanges the map of the cluster's groups with nodes of other groups: sends the record of this node's group, merges
the records that others send, stores the map on disk, and says which nodes to dial (docs/adr/0108).

Over each link a node sends the whole map when the link opens, new records as soon as it learns of them, and the record
of its own group every second, which also shows that the link works. Processes of the registry get the same records. The
records that they send are merged by the same rule, so no process of the registry can remove a record from a map. In a
cluster with one group and no registry, a node only accepts connections of other groups. All other work begins with the
first such connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from cluster.config.address import join_address, split_address
from cluster.config.config import Config, ConfigError
from cluster.config.local_layout import REGISTRY_GROUP, node_object
from cluster.members.service import MembersService
from cluster.peer.group_links import GroupLink, GroupLinks, LinkTarget
from cluster.placement.group_map import (
    Epoch,
    GroupMember,
    GroupRecord,
    GroupRecords,
    decode,
    dialled,
    encode,
    news,
    rank,
    same_addresses,
    same_names,
)
from cluster.placement.groups_file import GroupsFile
from cluster.placement.registry_metrics import RegistryMetrics
from cluster.placement.registry_state import RegistryProcess, RegistryState, decode_state
from cluster.runtime.context import NodeContext
from cluster.runtime.findings import Code
from cluster.runtime.logs import Seldom
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.service_lifecycle import Part
from raftlog.core.raw_node import RawNode
from raftlog.types import FIRST_GROUP, NOBODY, NodeId
from statemachine.cluster_wide.broker_groups import BrokerGroup, is_retired, living_groups

logger = logging.getLogger(__name__)

ALARM = Code("group_map", "warning", "raftmq status")
REGISTRY_ALARM = Code("registry_no_majority", "warning", "raftmq registry status")
NOT_READY_ALARM = Code("registry_not_ready", "warning", "raftmq registry status")
LOOK_S = 1.0
"""Seconds between two looks. In each look the node opens and closes links as needed, and sends the record of its own
group."""
WHOLE_EVERY = 10
"""The number of looks after which the whole map is sent again, for nodes that have missed records."""
GATHER_S = 0.05
"""Seconds for which new records are gathered before they are passed on. So a link gets at most 20 such frames a second,
whatever other nodes send.
"""
REFUSED_LOOKS = 10
"""The number of looks at which group 1 refuses this node before an alarm is raised. A new group 1 refuses for a moment,
until it has the level that is needed."""
RIVAL_LOOKS = 10
"""The number of looks before an alarm is raised if this node leads its group and another node led it in a later term. A
deposed leader normally hears of the later term within a second or two, and steps down."""
RETIRED_LOOKS = 10
"""The number of looks without a leader until this node ends, after it has heard that its group has retired. As long as
other nodes of the group run, this node learns of the retirement from their log."""
LOST_LOOKS = 30
"""The number of looks at which no majority of the registry is reached before an alarm is raised: the processes of the
registry may just be restarted one after the other.
"""
SAVE_AGAIN = 60
"""The number of looks until the next attempt after a failed write of the file."""


def own_record(
    raw: RawNode, members: MembersService, name: str, unreached: Callable[[], Iterable[NodeId]], level: int
) -> GroupRecord | None:
    """Returns the record of this node's group. None while this node knows no leader of the group, because the term of a
    candidate would be an epoch that no other node knows. None too if this node was removed from the group, or knows no
    address of a voter. `unreached` returns the nodes that this node does not reach, which are used only if it leads.
    `level`: the level of the group, as this node has applied it."""
    if raw.leader_id == NOBODY or members.is_removed:
        return None
    voters = members.in_force.voter_ids
    found = [
        GroupMember(node, known.host, known.port, known.admin, dict(known.listeners))
        for node, known in sorted(members.addresses.items())
        if node in voters
    ]
    epoch = Epoch(raw.term, max(0, members.in_force.index))
    lost = set(unreached()) if raw.leader_id == members.own_id else ()
    away: list[int] = sorted(node for node in voters if node in lost)
    return GroupRecord(members.identity.group_id, name, epoch, raw.leader_id, found, away, level) if found else None


def added(others: GroupRecords, rows: Mapping[int, BrokerGroup]) -> GroupRecords:
    """Returns those of the reported groups that belong to the cluster and have not retired, by `rows`: this node's copy
    of the list of groups (the truth). A node without a copy has no rows, and all reported groups are returned."""
    living = living_groups(rows)
    return {number: record for number, record in others.items() if number in living} if rows else others


def _registry_of(config: Config) -> list[LinkTarget]:
    return [
        LinkTarget(REGISTRY_GROUP, NodeId(number), (split_address(address),))
        for number, address in enumerate(config.cluster.registry, 1)
    ]


def has_majority(registry: Collection[RegistryProcess]) -> bool:
    """Returns True if more than half of the registry's processes are reached, or if there is no registry."""
    return not registry or 2 * sum(each.reached for each in registry) > len(registry)


def _lacking(registry: list[RegistryProcess]) -> list[str]:
    """Returns a text for each process that answers clients although nodes of some groups have not registered there."""
    return [
        f"registry node {each.id} answers clients without group {', '.join(map(str, each.state.missing))}: none of its "
        "nodes has registered there"
        for each in registry
        if each.state is not None and each.state.missing
    ]


class KnownGroups:
    """The map of the other groups, as this node knows it. Event loop only."""

    def __init__(
        self,
        context: NodeContext,
        links: GroupLinks,
        file: GroupsFile,
        own: Callable[[], GroupRecord | None],
        rows: Callable[[], Mapping[int, BrokerGroup]] = dict,
        retired: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
        whole_every: int = WHOLE_EVERY,
    ) -> None:
        """Reads the file (blocking). `own` returns the present record of this node's group, None if it has none; `rows`
        the groups of the truth (`BrokerGroups.by_number`). `retired` is called if the group has retired while this node
        was down, so that it finds no leader any more. Raises ConfigError if the configuration names no address at which
        this node could find other groups."""
        cluster = context.config.cluster
        self._group = cluster.group
        self._node = context.config.node_id
        self._first = tuple(split_address(address) for address in cluster.first_group)
        self._registry = _registry_of(context.config)
        self._loop = context.loop
        self._alarms = context.alarms
        self._links = links
        self._file = file
        self._make_own, self._rows, self._retired = own, rows, retired
        self._look_s, self._whole_every = look_s, whole_every
        self._heard_retired = False
        """True if a node of another group has said that this node's group has retired."""
        self._own: GroupRecord | None = None
        self._others: GroupRecords = file.load()
        self.groups_here = 1
        """The number of groups that have a node on this node's host, this group included. They share the host's
        disk."""
        self._registry_states: dict[int, RegistryState] = {}
        """Id of a process of the registry -> the state that it last reported."""
        self._fresh: dict[int, GroupRecord] = {}
        """Number of a group -> its record, for the records that are still to be passed on."""
        self._passing: asyncio.TimerHandle | None = None
        self._looks = self._refused_looks = self._lost_looks = self._rival_looks = self._alone_looks = 0
        """Each counts looks in a row. `_refused_looks`: group 1 refused this node, and no other connection to group 1
        was open. `_lost_looks`: no majority of the registry was reached. `_rival_looks`: another node led this group in
        a later term. `_alone_looks`: this group had no leader, and was reported to have retired."""
        self._heard_own: GroupRecord | None = None
        """The newest record of this node's group that other groups have sent; None if they sent none."""
        self._unsaved = False
        self._save_at = 0
        """The number of the look from which on the map may be written again."""
        self._saving: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._told = Seldom(logger)
        if self._group != FIRST_GROUP and not self._first and FIRST_GROUP not in self._others:
            raise ConfigError(
                f"cluster.group is {self._group}, and cluster.first_group is empty",
                "a node of another group than the first learns of the others from members of group 1",
                'write their peer addresses under [cluster]: first_group = ["10.0.0.1:10912"]',
            )
        links.takes(Kind.GROUPS, self._on_groups)
        links.takes(Kind.REGISTRY_STATE, self._on_registry_state)
        links.opened.add(self._on_open)

    def part(self) -> Part:
        """Returns the hooks through which the node calls this service."""
        return Part(
            name="other groups",
            start=self._start,
            close=self._close,
            role=lambda _: self._on_role(),
            reload=self._reload,
            metrics=(RegistryMetrics(self.registry),),
        )

    def others(self) -> GroupRecords:
        """Returns number -> record of each other group that has not retired. Records of retired groups are kept and
        passed on, but this node asks those groups for nothing."""
        return added(self._others, self._rows())

    def registry(self) -> list[RegistryProcess]:
        """Returns the processes of the registry, in the order of `cluster.registry`; an empty list without a
        registry."""
        found = []
        for target in self._registry:
            reached = self._links.reaches(target.group, target.node)
            state = self._registry_states.get(target.node) if reached else None
            found.append(RegistryProcess(target.node, join_address(*target.addresses[0]), reached, state))
        return found

    def leader(self, group: int) -> int:
        """Returns the last known leader of another group; 0 if it is unknown."""
        record = self._others.get(group)
        return record.leader if record is not None else NOBODY

    def below(self, level: int) -> list[str]:
        """Returns a text for each group that is not known to have that level. This includes groups that have sent
        nothing yet."""
        told, rows = [], self._rows()
        groups = {*rows, *self._others} & living_groups(rows) if rows else {*self._others}
        for group in sorted(groups - {self._group}):
            record = self._others.get(group)
            if record is None or not record.level:
                told.append(f"group {group} has not told its level")
            elif record.level < level:
                told.append(f"group {group} has level {record.level}, as it told last")
        return told

    # --- start and stop ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._group != FIRST_GROUP or self._others or self._registry:
            self._begin()

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._run(), name="other groups")

    def _reload(self, config: Config) -> None:
        """Connects to the processes of the registry that a changed configuration names."""
        registry = _registry_of(config)
        if registry == self._registry:
            return
        kept = [target for target in registry if target in self._registry]
        self._registry = kept
        self._links.tend(self._targets())  # connections to addresses that are no longer named are closed
        self._registry = registry
        self._lost_looks = 0
        if registry:
            self._begin()

    async def _close(self) -> None:
        self._closed = True
        if self._passing is not None:
            self._passing.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._links.close()
        if self._unsaved and self._saving is None:
            self._save()
        if self._saving is not None:
            await asyncio.wait([self._saving])

    async def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:  # a bad report of another group must not end this task
                logger.exception("the other groups could not be looked at")
            await asyncio.sleep(self._look_s)

    # --- by the clock ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._renew_own()
        known = self._known()
        self._looks += 1
        whole = self._looks % self._whole_every == 0
        self._tell(self._links.all(), known.values() if whole else [self._own] if self._own is not None else [])
        self._links.tend(self._targets())
        self._judge(known)
        self._look_if_retired()
        self.groups_here = self._count_here()
        if self._unsaved and self._saving is None and self._looks >= self._save_at:
            self._save()

    def _known(self) -> GroupRecords:
        """Returns the map that this node sends: with the record of its own group, and with retired groups marked as
        such."""
        rows = self._rows()
        told = {
            number: replace(record, retired=True) if is_retired(rows, number) else record
            for number, record in self._others.items()
        }
        return told if self._own is None else {**told, self._group: self._own}

    def _look_if_retired(self) -> None:
        """Ends this node if its group has retired while it was down, and no other node of the group runs from which it
        could learn that."""
        is_alone = self._heard_retired and self._make_own() is None
        self._alone_looks = self._alone_looks + 1 if is_alone else 0
        if self._alone_looks == RETIRED_LOOKS:
            self._retired()

    def _renew_own(self) -> bool:
        """Computes the record of this node's group again. Returns True if it has changed, and can be sent."""
        record, before = self._make_own(), self._own
        if record is not None and before is not None and record.epoch[:2] == before.epoch[:2]:
            is_changed = (record.away, record.level) != (before.away, before.level)
            change = before.epoch.change + (is_changed and record.leader == self._node)
            record = replace(record, epoch=record.epoch._replace(change=change))
        if record is None or record == before:
            return False
        try:
            decode(encode([record]))
        except WireError as error:
            self._told.warn("this node's group cannot be told to other groups", str(error))
            return False
        self._own = record
        return True

    def _targets(self) -> list[LinkTarget]:
        """Returns the nodes to dial: all processes of the registry, all members of group 1 unless this is group 1, and
        one member each of some other groups (`group_map.dialled`). While no known member of group 1 is reached, the
        addresses in the setting `first_group` are dialled too."""
        found = [*self._registry]
        if self._group != FIRST_GROUP:
            first = self._others.get(FIRST_GROUP)
            members = first.members if first is not None else []
            found += [LinkTarget(FIRST_GROUP, NodeId(each.node), ((each.host, each.port),)) for each in members]
            if self._first and not any(self._links.reaches(FIRST_GROUP, NodeId(each.node)) for each in members):
                found.append(LinkTarget(FIRST_GROUP, NOBODY, self._first))
        for group in dialled(self._group, self.others()):
            addresses = [(each.host, each.port) for each in self._others[group].members]
            at = self._node % len(addresses)  # members of this group begin with different addresses
            found.append(LinkTarget(group, NOBODY, tuple(addresses[at:] + addresses[:at])))
        return found

    def _count_here(self) -> int:
        own = self._own.members if self._own is not None else []
        host = next((each.host for each in own if each.node == self._node), None)
        return 1 + sum(any(each.host == host for each in record.members) for record in self.others().values())

    def _judge(self, known: GroupRecords) -> None:
        said = [
            f"group {group} has the name {known[group].name} of group {holder}: clients of other groups find only "
            f"group {holder} under it. Give its nodes another cluster.broker_name"
            for group, holder in sorted(same_names(known).items())
        ]
        said += [
            f"{node_object(*member)} has the peer address of {node_object(*holder)}: who dials one may reach "
            "the other. Correct the address of the one that moved, or remove it from its group if it is gone"
            for member, holder in sorted(same_addresses(known).items())
        ]
        if self._group != FIRST_GROUP and not self._first:
            said.append("cluster.first_group is empty: without its map of the groups this node could find nobody")
        why = self._links.refused.get(FIRST_GROUP)
        self._refused_looks = self._refused_looks + 1 if why is not None and not self._links.to(FIRST_GROUP) else 0
        if self._refused_looks >= REFUSED_LOOKS:
            said.append(f"no node of group {FIRST_GROUP} takes a connection of this one: {why}")
        rival = self._rival()
        self._rival_looks = self._rival_looks + 1 if rival is not None else 0
        if rival is not None and self._rival_looks >= RIVAL_LOOKS:
            said.append(
                f"{node_object(self._group, rival.leader)} leads group {self._group} too, in term {rival.epoch.term}: "
                "two survivors of it were recovered into this cluster, and each stores messages that the other does "
                "not have. Stop one of them, and add members to the other"
            )
        self._alarm(ALARM, ". ".join(said))
        registry = self.registry()
        why = self._why_no_majority(registry)
        self._lost_looks = self._lost_looks + 1 if why else 0
        self._alarm(REGISTRY_ALARM, why if self._lost_looks >= LOST_LOOKS else "")
        self._alarm(NOT_READY_ALARM, "; ".join(_lacking(registry)))

    def _rival(self) -> GroupRecord | None:
        """Returns the record of this node's group that names another leader in a later term, although this node leads;
        None if there is no such record."""
        heard = self._heard_own
        if heard is None or heard.leader == self._node:
            return None
        own = self._make_own()
        if own is None or own.leader != self._node:
            return None
        return heard if heard.epoch.term > own.epoch.term else None

    def _why_no_majority(self, registry: list[RegistryProcess]) -> str:
        """Returns the reason why the registry accepts no operation, as far as this node can see; "" if it accepts
        them."""
        if not has_majority(registry):
            reached = sum(each.reached for each in registry)
            why = self._links.refused.get(REGISTRY_GROUP, "the others do not answer in cluster.registry")
            return f"{reached} of {len(registry)} processes of the registry are reached: {why}"
        states = [each.state for each in registry if each.state is not None]
        if states and not any(state.has_majority for state in states):
            return "the processes of the registry are reached, and none has an operation accepted: its log says why"
        return ""

    def _alarm(self, key: Code, text: str) -> None:
        """Raises an alarm with the text, or clears it if the text is empty."""
        if text:
            self._alarms.raise_alarm(key, text)
        else:
            self._alarms.clear(key)

    # --- telling and hearing -----------------------------------------------------------------------------------------

    def _tell(self, links: Iterable[GroupLink], records: Collection[GroupRecord]) -> None:
        """Sends the records over the links. A process of the registry gets only the records of groups that exist: when
        it starts, it waits for each group that it has heard of."""
        there = {self._group, *self.others()}
        everything, registered = encode(records), encode([each for each in records if each.group in there])
        for link in links:
            link.send(Kind.GROUPS, [], registered if link.group == REGISTRY_GROUP else everything)

    def _on_role(self) -> None:
        """Sends the new record of this node's group to others. Called when the leader of the group has changed."""
        if self._task is not None and self._renew_own() and self._own is not None:
            self._pass_on_soon({self._group: self._own})

    def _on_open(self, link: GroupLink) -> None:
        self._begin()
        self._renew_own()
        self._tell([link], self._known().values())

    def _on_groups(self, link: GroupLink, header: list[object], payload: bytes) -> None:
        """Handles a frame GROUPS: merges its records into the map. Raises WireError if the frame is malformed."""
        heard = decode(payload)
        own = next((record for record in heard if record.group == self._group), None)
        if own is not None and (self._heard_own is None or rank(own) > rank(self._heard_own)):
            self._heard_own = own
        if link.group != REGISTRY_GROUP:  # the registry does not know which groups have retired
            self._heard_retired |= own is not None and own.retired
        fresh = news(self._others, heard, self._group)
        if fresh:
            is_new = not fresh.keys() <= self._others.keys()
            self._others = {**self._others, **fresh}
            self._unsaved = True
            self._pass_on_soon(fresh)
            if is_new and self._saving is None:  # without the file, a restart would not know the new group
                self._save()

    def _pass_on_soon(self, fresh: dict[int, GroupRecord]) -> None:
        self._fresh.update(fresh)
        if self._passing is None and not self._closed:
            self._passing = self._loop.call_later(GATHER_S, self._pass_on)

    def _pass_on(self) -> None:
        self._passing = None
        fresh, self._fresh = self._fresh, {}
        self._tell(self._links.all(), fresh.values())

    def _on_registry_state(self, link: GroupLink, header: list[object], payload: bytes) -> None:
        """Handles a frame REGISTRY_STATE: records the state of the process. Raises WireError if it is malformed."""
        self._registry_states[link.node] = decode_state(header)

    # --- on disk -----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Writes the map to the file, in another thread because the disk may be slow. No other work waits for the
        write."""
        self._unsaved = False
        self._saving = self._loop.run_in_executor(None, self._file.save, self._others)
        self._saving.add_done_callback(self._on_saved)

    def _on_saved(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        error = None if saving.cancelled() else saving.exception()
        if error is not None:
            self._unsaved, self._save_at = True, self._looks + SAVE_AGAIN
            self._told.warn("the map of the groups cannot be kept on disk", str(error))
